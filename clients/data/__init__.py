"""Sources of the examples that devices train on, one file per kind."""
