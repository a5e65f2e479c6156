"""Sending: order, batches, one request under way, the outcome of each message."""
