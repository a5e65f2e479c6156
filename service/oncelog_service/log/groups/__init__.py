"""Stored groups: payloads under a write pointer, and how they appear in the log."""
