"""Caps on how many of a device's examples a round may use; it uses the first ones."""

import numpy as np

from fedray.base.errors import ScenarioError
from fedray.scenario.training import FedAvg, FedSGD
from ..data.source import ExampleSource, Field, Ids, Integers

READ_AT_ONCE = 1024
"""Number of a device's examples that are read at once to count their tokens."""


def demand_tokens(table: FedAvg | FedSGD, source: ExampleSource) -> None:
    """Checks that the examples are texts if tokens are capped.

    Raises:
        ScenarioError: tokens are capped, but the examples have none.
    """
    tokens = source.fields.get("tokens")
    is_text = tokens is not None and tokens.is_text
    if table.max_tokens is not None and not is_text:
        names = ", ".join(f"`{name}`" for name in source.fields)
        raise ScenarioError.of(
            "training.client.max_tokens",
            table.max_tokens,
            f"needs `tokens`: the examples have only {names}",
            "use max_examples, or a task of text",
        )


def usable_examples(
    table: FedAvg | FedSGD,
    source: ExampleSource,
    device_ids: Ids,
    held: Integers,
) -> Integers:
    """Returns the number of examples [G] that each device may use.

    It is at least 1: the first example is used even if it exceeds the cap by tokens.

    Args:
        table: table with the caps.
        source: source of the examples.
        device_ids: devices [G].
        held: examples of each device, [G], at least 1.

    Raises:
        DamagedExamples: the data of some of these devices cannot be read.
    """
    usable = held
    if table.max_examples is not None:
        usable = np.minimum(held, table.max_examples)
    if table.max_tokens is None:
        return usable
    counts: list[int] = []
    for place, count in enumerate(usable.tolist()):
        device_id = device_ids[place : place + 1]
        counts.append(_within(source, device_id, count, table.max_tokens))
    return np.array(counts, np.int64)


def _within(
    source: ExampleSource,
    device_id: Ids,
    usable: int,
    max_tokens: int,
) -> int:
    """Returns how many of a device's first examples have at most max_tokens together, or 1."""
    field = source.fields["tokens"]
    seen = 0
    # Read in parts, because the cap is usually reached long before the last example.
    for first in range(0, usable, READ_AT_ONCE):
        end = min(first + READ_AT_ONCE, usable)
        positions = np.arange(first, end)
        examples = source.examples(device_id, positions[None, :])
        totals = seen + np.cumsum(_learned(examples["tokens"][0], field))
        within = int(np.searchsorted(totals, max_tokens, side="right"))
        if within < positions.size:
            return max(1, first + within)
        seen = int(totals[-1])
    return usable


def _learned(tokens: Integers, field: Field) -> Integers:
    """Returns the number of targets [B] in tokens [B, length + 1]."""
    # The first token precedes all targets, and padding is not a target.
    targets = tokens[:, 1:]
    if field.padding is None:
        return np.full(len(targets), targets.shape[1], np.int64)
    is_target = targets != field.padding
    return is_target.sum(axis=1)
