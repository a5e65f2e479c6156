"""Transactions and atomic commits: their participants, their messages, the order of their calls."""
