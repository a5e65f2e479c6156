"""Where bytes rest: a port as small as ordered byte tables allow, its adapters, and every layout on disk.

Keys are in keys.py, values in rows.py, payload_rows.py, records.py and events.py.
"""
