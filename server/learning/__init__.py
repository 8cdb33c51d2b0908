"""Training of the model: cohorts, aggregation, noise, clipping, optimizers."""
