"""What happens in a round, and aggregation with noise. Start reading at coordinator.py."""
