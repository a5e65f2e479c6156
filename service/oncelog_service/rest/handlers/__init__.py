"""One file for each resource: a handler decodes, calls one method, encodes."""
