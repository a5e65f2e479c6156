"""Changes of records go into a table, which always is what the topic says at one place of it; it is read by SQL."""
