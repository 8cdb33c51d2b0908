"""Pretraining on public data: a file with one table, in addition to the model's scenario."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedray.base.table import Positive, Table
from fedray.scenario.data import AnyData
from fedray.scenario.training import BelowOne, Count, momentum_is_of_sgd


class Pretraining(Table):
    """Central training of a scenario's model on public data, without devices, clipping or noise."""

    data: AnyData
    """Table: where the public examples come from, as in a scenario."""
    clients: Count = 1000
    """Number of clients of the public data to use. Recorded data with fewer is used whole.
    Synthetic data has any number of clients, and they are not devices."""
    steps: Count
    """Number of steps of gradient descent."""
    batch_size: Count = 32
    """Number of examples per step. They are drawn from the examples of all clients, without
    replacement until all are used."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer of the steps."""
    learning_rate: Positive = 0.1
    """Step size."""
    momentum: BelowOne = 0.0
    """Share of the previous step that is kept; only for sgd."""
    evaluate_every: Count = 100
    """Number of steps between two evaluations on held-out clients of the public data."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the order of the examples. The initial model is the scenario's."""

    _momentum_is_of_sgd = model_validator(mode="after")(momentum_is_of_sgd)
