"""Optimisation of strategies, with one file per shape of strategy; start at design.py."""
