"""Live deployments: whether a claim will still hold after the last planned round, and changes that
keep it."""
