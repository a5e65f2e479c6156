"""Commands on messages: publishing, reading, and measuring both."""
