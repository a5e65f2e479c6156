"""Commands that open stores themselves, while no service serves them: copy, verify, salvage."""
