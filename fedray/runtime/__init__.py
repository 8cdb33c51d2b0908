"""Where code runs: workers, the Ray cluster, placement."""
