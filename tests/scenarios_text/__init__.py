"""Scenarios as text: what is done, and what is expected, on the floor of the simulated world."""
