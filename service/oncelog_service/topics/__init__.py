"""All topics of a store: which there are, what holds for them, which are open here, how they are made, changed and deleted."""
