"""Traces as tables for databases: what the tables are, what goes into them, and files of SQLite and Parquet."""
