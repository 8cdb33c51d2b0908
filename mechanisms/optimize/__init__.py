"""Optimisation of strategies. Start at design.py; one file per shape of strategy. The only package
that uses jax."""
