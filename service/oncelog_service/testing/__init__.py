"""A service for a test, with faults by name; what is public of it stands in :mod:`oncelog.testing`."""
