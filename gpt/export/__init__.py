"""Export traces as tables for databases: the schema, the rows, and files of SQLite and Parquet."""
