"""Backups of stores in files: an archive of them, how one is taken of a running store, and how one becomes a store again."""
