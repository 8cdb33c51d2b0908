"""Formation of rounds: coordinators, selection, closing, pace, budgets."""
