"""CloudEvents in and out: each event is a message, and is stored once by its source and id."""
