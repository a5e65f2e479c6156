"""Who may do what: rights and grants, tokens, principals, and the record of administrative requests."""
