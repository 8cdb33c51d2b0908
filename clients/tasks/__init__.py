"""Tasks: a model, its data and its metric together, one file each."""
