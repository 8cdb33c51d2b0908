"""Which of a device's examples a round may use: its first ones, up to the caps of the scenario."""

import numpy as np
from numpy.typing import NDArray

from clients.data.source import ExampleSource, Field
from fedray.errors import ScenarioError
from fedray.scenario import FedAvg, FedSGD

READ_AT_ONCE = 1024
"""Examples of a device that are read to count their tokens."""


def demand_tokens(table: FedAvg | FedSGD, source: ExampleSource) -> None:
    """Raises ScenarioError if a cap by tokens is asked for and the examples have none."""
    tokens = source.fields.get("tokens")
    is_text = tokens is not None and tokens.kind == "whole" and len(tokens.shape) == 1
    if table.max_tokens is not None and not is_text:
        raise ScenarioError(
            f"training.client.max_tokens={table.max_tokens}: the examples have no `tokens`, but "
            f"{', '.join(f'`{name}`' for name in source.fields)}; take max_examples, or a task of "
            "text"
        )


def usable_examples(
    table: FedAvg | FedSGD,
    source: ExampleSource,
    device_ids: NDArray[np.uint64],
    held: NDArray[np.int64],
) -> NDArray[np.int64]:
    """How many of its first examples each device may use, [G], at least 1.

    Args:
        table: has the caps.
        source: of the examples.
        device_ids: devices [G].
        held: how many examples each of them has, [G], at least 1.

    Raises:
        DamagedExamples: the data of some of these devices cannot be read.
    """
    usable = held if table.max_examples is None else np.minimum(held, table.max_examples)
    if table.max_tokens is None:
        return usable
    counts = [
        _within(source, device_ids[place : place + 1], many, table.max_tokens)
        for place, many in enumerate(usable.tolist())
    ]
    return np.array(counts, np.int64)


def _within(
    source: ExampleSource, device_id: NDArray[np.uint64], usable: int, max_tokens: int
) -> int:
    """How many of a device's first examples have at most max_tokens together; 1 at least."""
    field, seen = source.fields["tokens"], 0
    for first in range(0, usable, READ_AT_ONCE):
        positions = np.arange(first, min(first + READ_AT_ONCE, usable))
        tokens = source.examples(device_id, positions[None, :])["tokens"][0]
        totals = seen + np.cumsum(_learned(tokens, field))
        within = int(np.searchsorted(totals, max_tokens, side="right"))
        if within < positions.size:
            return max(1, first + within)
        seen = int(totals[-1])
    return usable


def _learned(tokens: NDArray[np.int64], field: Field) -> NDArray[np.int64]:
    """Tokens that are learned of each text, [B], of tokens [B, length + 1]: the first stands
    before all targets, and padding is none."""
    targets = tokens[:, 1:]
    is_target = np.ones_like(targets) if field.padding is None else targets != field.padding
    return is_target.sum(axis=1)
