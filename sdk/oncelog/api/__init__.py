"""The calls of the service, one method a call, and when one may be tried again."""
