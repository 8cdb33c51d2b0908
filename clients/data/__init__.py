"""Data: where the examples that devices train on come from, one file per kind."""
