"""Sweeps of settings or simulated runs: the cost of a wrong guess for mechanisms made for it."""
