"""What clients may take of what all of them share: connections, memory of bodies, memory of answers that are not read."""
