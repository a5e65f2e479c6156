"""A saga over three services: an order is either taken, with its goods and its money, or nothing of it stays."""
