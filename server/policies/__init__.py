"""What devices remember of an attempt, so that they keep away from others; a file per policy."""
