"""When devices are eligible: one file per model. `model.py` says what a model is, `registry.py` has
them all."""
