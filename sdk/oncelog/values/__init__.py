"""Values: what is sent, what comes back, where reading begins. Pure."""
