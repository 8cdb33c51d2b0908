"""A trained run on disk: the model that was learned from a trace, and how it got there.

    TRAINED/
      training.json      what was trained on which trace, and digests of the files and of itself
      metrics.parquet    a row per round
      model.npz          the aggregator's state: parameters, optimiser, noise, next round

`fedray run` puts it into the trace, as TRACE/training; `fedray train` puts it where it is told.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedray.errors import TraceCorrupt, TraceError, TraceVersion, shown
from fedray.messages import TrainingMetrics
from fedray.parsing import parse_json
from fedray.trace.checkpoints import NPZ_DAMAGE, npz_bytes
from fedray.trace.files import first_line, read_columns
from fedray.trace.partial import PartialDirectory
from fedray.trace.provenance import package_versions
from fedray.trace.schema import DOCUMENT_DIGEST, columns_digest, document_digest

FORMAT = "fedray-training"
VERSION = 1
TRAINING = "training"
"""The folder of a trace in which `fedray run` puts the trained run."""
TRAINING_FILE = "training.json"
METRICS_FILE = "metrics.parquet"
MODEL_FILE = "model.npz"
METRIC_SCHEMA = pa.schema(
    [
        pa.field("round", pa.uint32(), nullable=False),
        pa.field("train_loss", pa.float64(), nullable=False),
        pa.field("clipped_share", pa.float64(), nullable=False),
        pa.field("evaluation_loss", pa.float64()),  # null: not evaluated after this round
        pa.field("evaluation_accuracy", pa.float64()),
    ]
)
_KINDS = {
    "trace_digest": str,
    "rounds": int,
    "seed": int,
    "scenario": dict,
    "metrics_digest": str,
    "model_sha256": str,
}


class TrainedRun:
    """A trained run, opened. Raises TraceError, TraceCorrupt or TraceVersion.

    path: its directory.
    document: training.json.
    """

    def __init__(self, path: Path, document: dict[str, Any], verify: bool = True) -> None:
        self.path, self.document = path, document
        self._verify = verify

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Self:
        """Opens a directory.

        verify: whether training.json and, as they are read, the files must have their digests.
        """
        directory = Path(path)
        file = directory / TRAINING_FILE
        try:
            document = parse_json(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise TraceError(
                f"{str(directory)!r} has no {TRAINING_FILE}; give the directory of a trained run"
            ) from None
        except (OSError, ValueError) as error:
            raise TraceCorrupt(
                f"{file} cannot be read ({first_line(error)}); train again"
            ) from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise TraceError(
                f"{file} does not say format={FORMAT!r}; give the directory of a trained run"
            )
        if document.get("version") != VERSION:
            raise TraceVersion(
                f"{file} has version={shown(document.get('version'))}, this release reads "
                f"{VERSION}; use the fedray release that wrote it, or train again"
            )
        if verify and document.get(DOCUMENT_DIGEST) != document_digest(document):
            raise TraceCorrupt(
                f"{file} does not have the digest that it records of itself; it was changed: "
                "train again, or leave digests unchecked"
            )
        wrong = [key for key, kind in _KINDS.items() if not isinstance(document.get(key), kind)]
        if wrong:
            raise TraceCorrupt(
                f"{file} lacks {', '.join(wrong)}, or has them in another form; train again"
            )
        return cls(directory, document, verify)

    def __repr__(self) -> str:
        rounds = self.document["rounds"]
        return (
            f"<TrainedRun {shown(str(self.path))}: {rounds:,} rounds of {self.trace_digest[:12]}>"
        )

    @property
    def trace_digest(self) -> str:
        """Digest of the trace whose participations were trained on."""
        return self.document["trace_digest"]

    @cached_property
    def metrics(self) -> dict[str, NDArray]:
        """Columns of METRIC_SCHEMA, a row per round; NaN where a round was not evaluated."""
        columns = read_columns(self.path / METRICS_FILE, METRIC_SCHEMA)
        if self._verify and columns_digest(columns) != self.document.get("metrics_digest"):
            raise TraceCorrupt(self._changed(METRICS_FILE))
        return columns

    def parameters(self) -> NDArray[np.float32]:
        """The final model's parameters [D]."""
        file = self.path / MODEL_FILE
        try:
            content = file.read_bytes()
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                parameters = arrays["parameters"]
        except NPZ_DAMAGE as error:
            raise TraceCorrupt(
                f"{file} cannot be read ({first_line(error)}); train again"
            ) from None
        if self._verify and hashlib.sha256(content).hexdigest() != self.document.get(
            "model_sha256"
        ):
            raise TraceCorrupt(self._changed(MODEL_FILE))
        return parameters

    def rows(self) -> list[list[str]]:
        """What was trained, as lines of a table: a name and a value."""
        document, training = self.document, self.document["scenario"]["training"]
        rows = [
            ["rounds", f"{document['rounds']:,}, {training['cohort_sample']:,} devices in each"],
            ["task", f"{training.get('file', training['task'])}, seed {document['seed']}"],
            ["loss", f"{self.metrics['train_loss'][-1]:.4f} on the devices, before they train"],
        ]
        loss, accuracy = (self.metrics[f"evaluation_{name}"][-1] for name in ("loss", "accuracy"))
        rows.append(["held-out data", f"loss {loss:.4f}, accuracy {accuracy:.4f}"])
        rows.append(["trace", f"digest {self.trace_digest}"])
        return rows

    def to_json(self) -> dict[str, Any]:
        """One JSON object: training.json, and the metrics of the last round."""
        last = {name: column[-1].item() for name, column in self.metrics.items()}
        return {"path": str(self.path), **self.document, "last_metrics": last}

    def verify(self) -> None:
        """Reads every file and compares its digest. Raises TraceCorrupt."""
        checked = type(self).open(self.path)
        _ = checked.metrics, checked.parameters()

    def _changed(self, name: str) -> str:
        return (
            f"{self.path / name} does not have the digest that {TRAINING_FILE} records; it was "
            "changed: train again, or leave digests unchecked"
        )


class TrainedRunWriter(PartialDirectory):
    """A trained run in the making."""

    def __init__(
        self, directory: str | Path, *, is_resumed: bool = False, partial: Path | None = None
    ) -> None:
        super().__init__(directory, TRAINING_FILE, is_resumed=is_resumed, partial=partial)

    def finish(
        self,
        metrics: Sequence[TrainingMetrics],
        model: Mapping[str, NDArray],
        document: Mapping[str, Any],
    ) -> Path:
        """Writes metrics, model and training.json, and gives the directory its name. Its path."""
        columns = _metric_columns(metrics)
        arrays = [
            pa.array(columns[field.name], field.type, mask=np.isnan(columns[field.name]))
            for field in METRIC_SCHEMA
        ]
        buffer = io.BytesIO()
        table = pa.table(arrays, schema=METRIC_SCHEMA)
        pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        self._write(METRICS_FILE, buffer.getvalue())
        content = npz_bytes(model)
        self._write(MODEL_FILE, content)
        head = {
            "format": FORMAT,
            "version": VERSION,
            "metrics_digest": columns_digest(columns),
            "model_sha256": hashlib.sha256(content).hexdigest(),
        }
        return self.publish({**head, **document, "packages": package_versions()})


def _metric_columns(metrics: Sequence[TrainingMetrics]) -> dict[str, NDArray]:
    def column(name: str) -> NDArray[np.float64]:
        return np.array([getattr(row, name) for row in metrics], np.float64)

    rounds = np.array([row.round_index for row in metrics], np.uint32)
    return {"round": rounds, **{name: column(name) for name in METRIC_SCHEMA.names[1:]}}
