"""A topic becomes a folder of Parquet files, each message once, and a page that shows what is in it."""
