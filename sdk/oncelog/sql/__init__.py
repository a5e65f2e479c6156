"""What needs SQLAlchemy (the extra `sql`): checkpoint, outbox and relay, a database that takes part in a transaction."""
