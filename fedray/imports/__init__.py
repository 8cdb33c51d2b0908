"""Logs and recordings of others: import as a trace, sessions, published traces."""
