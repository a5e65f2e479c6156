"""Tests of who may do what: grants, tokens, the audit log."""
