"""Fitting the habit model to a log of a user's own system, by simulated moments."""
