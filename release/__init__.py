"""What makes a release of oncelog: docs/releasing.md. Nothing here uploads anything."""
