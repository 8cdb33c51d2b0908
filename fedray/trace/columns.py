"""Meanings of the columns of a trace and of a trained run, which `fedray schema` prints.

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
    OWNER,
    PARTICIPATIONS,
    ROUND_SCHEMA,
    ROUNDS_FILE,
    STATES,
)
from fedray.trace.trained import METRIC_SCHEMA, METRICS_FILE

_SECONDS = "seconds"

MEANINGS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    PARTICIPATIONS: {
        "round": ("", "The round that the device was selected for; abandoned attempts have the "
                      "number of the round that they attempted."),
        "device_id": ("", "The device: 0, 1, 2, ..."),
        "checkin_time": (_SECONDS, "When the device checked in; with stored uploads, when it "
                                   "uploaded."),
        "report_time": (_SECONDS, "When the device reported; null if it never did."),
        "outcome": ("", f"Outcome of the participation: {', '.join(OUTCOMES)}."),
        "examples": ("examples", "Number of examples on the device; `training.client` limits "
                                 "how many of them are used."),
        "version": ("rounds", "Only for buffered rounds: number of rounds released when the "
                              "device started. The round minus the version is the staleness."),
        "owner_id": ("", "Only with `population.owners`: the person who owns the device, named by "
                         "the id of the person's first device."),
    },
    ROUNDS_FILE: {
        "round": ("", "Number of the committed round, from 0; an abandoned attempt has the "
                      "number of the round that it attempted."),
        "opened": (_SECONDS, "When selection began; with stored uploads, when their window "
                             "ended."),
        "started": (_SECONDS, "When devices were selected, or the attempt was abandoned."),
        "closed": (_SECONDS, "When the round was committed or abandoned."),
        "selected": ("devices", "Number of devices selected."),
        "reported": ("devices", "Number of selected devices that reported, late ones included."),
        "accepted": ("devices", "Number of devices whose reports were used; 0 if the attempt "
                                "was abandoned."),
        "state": ("", f"Outcome of the attempt: {' or '.join(STATES)}."),
        "eligible_estimate": ("devices", "Estimated number of devices that were eligible at the "
                                         "start of the look-ahead window in which the attempt "
                                         "started."),
    },
    LOSSES_FILE: {
        "device_id": ("", "The device that lost its history."),
        "time": (_SECONDS, "When the device lost it."),
    },
    METRICS_FILE: {
        "round": ("", "The round."),
        "train_loss": ("of the task", "Mean loss of the round's devices before they trained; "
                                      "null if no device trained."),
        "clipped_share": ("share", "Share of the round's devices whose update was scaled down."),
        "trained": ("devices", "Number of devices whose update is in the sum."),
        "without_examples": ("devices", "Number of devices without data."),
        "damaged": ("devices", "Number of devices whose data cannot be read."),
        "not_finite": ("devices", "Number of devices whose update has a NaN or an infinity, and "
                                  "counts as 0."),
        "zeroed": ("devices", "Number of devices whose update was so long that it counts as 0."),
        "clip_norm": ("L2 norm", "Norm to which updates were clipped; null if not recorded."),
        "counted_norm": ("L2 norm", "Norm up to which updates were counted as short; null if "
                                    "short updates were not counted."),
    },
}  # fmt: skip
"""(unit, meaning) of every column, by file. metrics.parquet also has, for each metric of the task,
evaluation_NAME and evaluation_NAME_error, which are null in rounds that were not evaluated."""
_SCHEMAS: Mapping[str, pa.Schema] = {
    PARTICIPATIONS: BUFFERED_SCHEMA.append(OWNER),
    ROUNDS_FILE: ROUND_SCHEMA,
    LOSSES_FILE: LOSS_SCHEMA,
    METRICS_FILE: METRIC_SCHEMA,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file of a trace, in words."""

    name: str
    """Name of the column in the file."""
    type: str
    """Parquet type, such as "uint32", with "or null" if a value may be missing."""
    unit: str
    """Unit, such as "seconds"; empty if there is none. Times count from the start of the run."""
    meaning: str
    """Description, as a sentence."""


def columns_of(file: str) -> list[Column]:
    """Returns the columns of a file, in order.

    Args:
        file: "participations", "rounds.parquet", "losses.parquet" or "metrics.parquet".
    """
    columns = []
    for field in _SCHEMAS[file]:
        unit, meaning = MEANINGS[file][field.name]
        # Dictionary codes are only how the column is stored; readers get text.
        is_text = pa.types.is_dictionary(field.type)
        type_text = "text" if is_text else str(field.type)
        columns.append(
            Column(field.name, type_text + (" or null" if field.nullable else ""), unit, meaning)
        )
    return columns
