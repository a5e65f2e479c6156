"""What can be watched, in Prometheus' text format. Each is documented in docs/operating.md, and a test says so.

What counts is counted where it happens (counting/, traffic.py) and lives as long as the process, so that no counter falls when
the store is reopened or a topic is closed; what is a state is read from the live objects at the moment it is asked for.
"""
