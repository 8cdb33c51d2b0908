"""Readers of data that is recorded by clients, one file per format."""
