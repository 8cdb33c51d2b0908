"""A device's memory of an attempt, and its waiting time afterwards; one file per policy."""
