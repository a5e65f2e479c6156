"""Stores that lie in files: LevelDB, and what SQLite shares with it."""
