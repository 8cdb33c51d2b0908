"""Forecasts of running deployments: min-sep, participations and epsilon at the end."""
