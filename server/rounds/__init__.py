"""How rounds are formed: coordinators, selection, closing, pace, budgets."""
