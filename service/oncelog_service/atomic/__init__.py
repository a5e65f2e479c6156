"""Atomic commits over several topics: what happened to each (records), its fold (plan), and how each ends (endings)."""
