"""Readers of recorded data, one file per format."""
