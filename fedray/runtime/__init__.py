"""Places where code runs: workers, the Ray cluster, placement."""
