"""Meanings of the columns of a trace and of a trained run, printed by `fedray schema`.

Types and order are in `fedray/trace/schema.py` and `fedray/trace/trained.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from fedray.trace.schema import (
    BUFFERED_SCHEMA,
    LOSS_SCHEMA,
    LOSSES_FILE,
    OUTCOMES,
    PARTICIPATIONS,
    ROUND_SCHEMA,
    ROUNDS_FILE,
    STATES,
)
from fedray.trace.trained import METRIC_SCHEMA, METRICS_FILE

_SECONDS = "seconds"

MEANINGS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    PARTICIPATIONS: {
        "round": ("", "The round that the device was selected for; abandoned attempts bear the "
                  "number that they tried for."),
        "device_id": ("", "The device: 0, 1, 2, ..."),
        "checkin_time": (_SECONDS, "When it checked in; of stored uploads, when it uploaded."),
        "report_time": (_SECONDS, "When it reported; null if it never did."),
        "outcome": ("", f"What became of it: {', '.join(OUTCOMES)}."),
        "examples": ("examples", "Examples that it holds; `training.client` says on how many of "
                     "them it trains."),
        "version": ("rounds", "Of buffered rounds alone: rounds that had been released when it "
                    "started. The round less the version is the staleness."),
    },
    ROUNDS_FILE: {
        "round": ("", "Number of the committed round, from 0; an abandoned attempt bears the "
                  "number that it tried for."),
        "opened": (_SECONDS, "When selection began; of stored uploads, when their window ended."),
        "started": (_SECONDS, "When devices were selected, or the attempt was given up."),
        "closed": (_SECONDS, "When it was committed or abandoned."),
        "selected": ("devices", "Devices that were selected."),
        "reported": ("devices", "Of them, those that reported at all, late ones included."),
        "accepted": ("devices", "Devices whose reports were used; 0 where it was abandoned."),
        "state": ("", f"What became of the attempt: {' or '.join(STATES)}."),
        "eligible_estimate": ("devices", "Estimate of the devices that were eligible at the start "
                              "of the look-ahead window in which it started."),
    },
    LOSSES_FILE: {
        "device_id": ("", "The device that lost its history."),
        "time": (_SECONDS, "When it lost it."),
    },
    METRICS_FILE: {
        "round": ("", "The round."),
        "train_loss": ("of the task", "Mean loss of the round's devices before they trained; null "
                       "if none did."),
        "clipped_share": ("share", "Share of the round's devices whose update was scaled down."),
        "trained": ("devices", "Devices whose update is in the sum."),
        "without_examples": ("devices", "Devices that hold no data."),
        "damaged": ("devices", "Devices whose data cannot be read."),
        "not_finite": ("devices", "Devices whose update has a NaN or an infinity; it counts as 0."),
        "zeroed": ("devices", "Devices whose update was so long that it counts as 0."),
        "clip_norm": ("L2 norm", "Norm to which updates were clipped; null if not recorded."),
        "counted_norm": ("L2 norm", "Norm up to which updates were counted as short; null if none "
                         "were counted."),
    },
}  # fmt: skip
"""(unit, meaning) of every column, by file. metrics.parquet has besides, for each metric of the
task, evaluation_NAME and evaluation_NAME_error: null in rounds that were not evaluated."""
_SCHEMAS: Mapping[str, pa.Schema] = {
    PARTICIPATIONS: BUFFERED_SCHEMA,
    ROUNDS_FILE: ROUND_SCHEMA,
    LOSSES_FILE: LOSS_SCHEMA,
    METRICS_FILE: METRIC_SCHEMA,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file of a trace, in words."""

    name: str
    """As in the file."""
    type: str
    """As Parquet has it, such as "uint32"; "or null" where it may be missing."""
    unit: str
    """Such as "seconds"; empty for none. Times count from the start of the run."""
    meaning: str
    """A sentence."""


def columns_of(file: str) -> list[Column]:
    """The columns of a file, in its order.

    Args:
        file: "participations", "rounds.parquet", "losses.parquet" or "metrics.parquet".
    """
    columns = []
    for field in _SCHEMAS[file]:
        unit, meaning = MEANINGS[file][field.name]
        # Codes are how a column is stored; whoever reads it finds text.
        is_text = pa.types.is_dictionary(field.type)
        type_text = "text" if is_text else str(field.type)
        columns.append(
            Column(field.name, type_text + (" or null" if field.nullable else ""), unit, meaning)
        )
    return columns
