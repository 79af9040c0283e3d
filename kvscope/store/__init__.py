"""The SQL store: the only speaker of SQL."""
