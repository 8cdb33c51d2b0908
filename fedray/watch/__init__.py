"""What is under a directory of runs, for `fedray watch` and `fedray status`."""
