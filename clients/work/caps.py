"""Which of a device's examples a round may use: its first ones, up to the caps of the scenario."""

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import ScenarioError
from fedray.clients.data.source import ExampleSource, Field
from fedray.scenario.training import FedAvg, FedSGD

READ_AT_ONCE = 1024
"""Examples of a device that are read to count their tokens."""


def demand_tokens(table: FedAvg | FedSGD, source: ExampleSource) -> None:
    """Checks that a cap by tokens, if there is one, is asked of examples that have tokens.

    Args:
        table: has the caps.
        source: of the examples.

    Raises:
        ScenarioError: a cap by tokens is asked for and the examples have none.
    """
    tokens = source.fields.get("tokens")
    is_text = tokens is not None and tokens.kind == "whole" and len(tokens.shape) == 1
    if table.max_tokens is not None and not is_text:
        names = ", ".join(f"`{name}`" for name in source.fields)
        raise ScenarioError.of(
            "training.client.max_tokens",
            table.max_tokens,
            f"needs `tokens`: the examples have only {names}",
            "take max_examples, or a task of text",
        )


def usable_examples(
    table: FedAvg | FedSGD,
    source: ExampleSource,
    device_ids: NDArray[np.uint64],
    held: NDArray[np.int64],
) -> NDArray[np.int64]:
    """How many of its first examples each device may use.

    Args:
        table: has the caps.
        source: of the examples.
        device_ids: devices [G].
        held: how many examples each of them has, [G], at least 1.

    Returns:
        [G], at least 1: an example that exceeds a cap by tokens alone is used all the same.

    Raises:
        DamagedExamples: the data of some of these devices cannot be read.
    """
    usable = held
    if table.max_examples is not None:
        usable = np.minimum(held, table.max_examples)
    if table.max_tokens is None:
        return usable
    counts: list[int] = []
    for place, many in enumerate(usable.tolist()):
        device_id = device_ids[place : place + 1]
        counts.append(_within(source, device_id, many, table.max_tokens))
    return np.array(counts, np.int64)


def _within(
    source: ExampleSource,
    device_id: NDArray[np.uint64],
    usable: int,
    max_tokens: int,
) -> int:
    """How many of a device's first examples have at most max_tokens together; 1 at least."""
    field = source.fields["tokens"]
    seen = 0
    # They are read in parts, because the cap is mostly reached long before the last one.
    for first in range(0, usable, READ_AT_ONCE):
        end = min(first + READ_AT_ONCE, usable)
        positions = np.arange(first, end)
        examples = source.examples(device_id, positions[None, :])
        tokens = examples["tokens"][0]
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
    if field.padding is None:
        return np.full(len(targets), targets.shape[1], np.int64)
    is_target = targets != field.padding
    return is_target.sum(axis=1)
