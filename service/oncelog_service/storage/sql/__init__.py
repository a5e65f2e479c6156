"""The store on a SQL database: SQLite for one process, PostgreSQL for several."""
