"""Rounds, and aggregation with noise. Start reading at rounds/coordinator.py."""
