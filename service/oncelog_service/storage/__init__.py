"""Where bytes rest: a port as small as ordered byte tables allow, its adapters, and every layout on disk (keys.py, rows.py)."""
