"""When devices are eligible: one file per model. `model.py` says what a model is, `factory.py`
makes that of a scenario."""
