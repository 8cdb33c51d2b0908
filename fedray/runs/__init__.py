"""Runs from a scenario to its results: simulation, learning, pretraining, and both in step."""
