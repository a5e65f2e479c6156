"""A thin skin: a table of all addresses; limits, errors and documentation around the handlers."""
