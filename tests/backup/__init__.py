"""Backups of running stores, and what becomes of clients when one is restored."""
