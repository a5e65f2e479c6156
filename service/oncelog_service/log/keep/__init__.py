"""What is kept and how it is found again: recovery, snapshots, expiry, losses."""
