"""The values of an evaluation task: the metric of a model on the devices of each round, in
evaluation.parquet next to the trace. A function of the trace and of the training, so it has no part
in the trace's digest.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.atomic import write_whole
from fedray.base.errors import InputError, TraceCorrupt
from fedray.trace.files import read_columns
from fedray.trace.reader import Trace

EVALUATED_FILE = "evaluation.parquet"
_SCHEMA = pa.schema(
    [
        pa.field("round", pa.uint32(), nullable=False),
        pa.field("version", pa.uint32(), nullable=False),
        pa.field("device_id", pa.uint64(), nullable=False),
        pa.field("value", pa.float64()),
    ]
)
"""Round of the evaluation, rounds that the model was trained on, device, and the device's metric;
null for a device without examples."""


class EvaluatedRound(NamedTuple):
    """A round of an evaluation task."""

    version: int
    """Number of rounds that the model was trained on."""
    device_ids: UInt64Array
    """Devices of the round, [A], sorted."""
    values: Float64Array
    """Metric of each device, [A]; NaN for one without examples."""


def devices_of_rounds(trace: Trace) -> list[UInt64Array]:
    """Returns the accepted devices of each committed round of a trace, sorted."""
    parts = list(trace.accepted())
    rounds = np.concatenate([np.empty(0, np.uint32), *(part.rounds for part in parts)])
    device_ids = np.concatenate([np.empty(0, np.uint64), *(part.device_ids for part in parts)])
    # Parts come in order of devices, which a stable sort keeps within a round.
    ends = np.cumsum(np.bincount(rounds, minlength=trace.committed_rounds))
    return np.split(device_ids[np.argsort(rounds, kind="stable")], ends)[:-1]


def write_evaluated(directory: Path, rounds: Sequence[EvaluatedRound]) -> None:
    """Writes the values of the rounds of a trace, in order. Raises InputError if it cannot."""
    sizes = [each.device_ids.size for each in rounds]
    columns = [
        np.repeat(np.arange(len(rounds), dtype=np.uint32), sizes),
        np.repeat(np.array([each.version for each in rounds], np.uint32), sizes),
        np.concatenate([each.device_ids for each in rounds]),
        pa.array(np.concatenate([each.values for each in rounds]), from_pandas=True),
    ]
    table = pa.Table.from_arrays([pa.array(each) for each in columns], schema=_SCHEMA)
    write_whole(
        directory / EVALUATED_FILE,
        lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True),
        f"{EVALUATED_FILE} of trace {str(directory)!r}",
        InputError,
    )


def read_evaluated(trace: Trace) -> list[EvaluatedRound]:
    """Returns the values of a trace's rounds.

    Raises:
        InputError: the evaluated model is not trained yet, or committed no round.
        TraceCorrupt: the file is damaged, or its devices are not those of the trace.
    """
    file = trace.path / EVALUATED_FILE
    if not file.exists():
        raise InputError(
            f"trace {str(trace.path)!r}: its devices evaluated no model, which is not trained yet "
            "or committed no round; resume the run of all tasks if it is unfinished"
        )
    columns = read_columns(file, _SCHEMA)
    accepted = devices_of_rounds(trace)
    sizes = np.array([each.size for each in accepted], np.int64)
    is_whole = np.array_equal(columns["round"], np.repeat(np.arange(sizes.size), sizes))
    if not is_whole or not np.array_equal(columns["device_id"], np.concatenate(accepted)):
        raise TraceCorrupt.at(file, "is of another trace")
    ends = np.cumsum(sizes)
    return [
        EvaluatedRound(
            int(columns["version"][end - 1]), ids, columns["value"][end - ids.size : end]
        )
        for ids, end in zip(accepted, ends.tolist(), strict=True)
    ]
