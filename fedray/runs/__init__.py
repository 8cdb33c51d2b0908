"""Runs: a scenario becomes a trace, and a trace a trained model."""
