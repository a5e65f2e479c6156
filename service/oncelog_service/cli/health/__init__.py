"""How a service is doing, for people at a terminal: what is wrong with it, and what goes on."""
