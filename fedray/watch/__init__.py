"""The runs under a directory, for `fedray watch` and `fedray status`."""
