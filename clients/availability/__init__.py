"""Times at which devices are eligible: one file per model. `model.py` has the contract,
`factory.py` makes the model of a scenario."""
