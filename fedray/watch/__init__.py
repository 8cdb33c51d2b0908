"""The runs under a directory, for `fedray status`."""
