"""The service as a process: what it says to whoever supervises it, and what it reads again when it is told to."""
