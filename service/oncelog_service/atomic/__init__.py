"""Atomic commits over several topics: what happened, as bytes (records), and what is to be done about it (plan)."""
