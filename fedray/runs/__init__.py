"""Runs from a scenario to its results: simulation, learning, and both in step."""
