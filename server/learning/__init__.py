"""How a model is trained: cohorts, aggregation, noise, clipping, optimizers."""
