"""The transaction service: its state as a table of moves (state), what is kept of it (edits, snapshot), its owner (manager)."""
