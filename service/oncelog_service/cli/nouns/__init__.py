"""What there is in a service: one file for each noun, with its verbs."""
