"""Data of the user's own: a source of examples, or partitions such as those of Flower Datasets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from clients.data.readers.reader import Client, Column, Damaged
from clients.data.recorded import RecordedExamples
from clients.data.source import DamagedExamples, ExampleSource, Field
from clients.python_file import called, function_in
from fedray.errors import FedrayError, ScenarioError
from fedray.scenario import Scenario
from fedray.scenario.data import CustomData

FUNCTION = "data"
_ANY_CHECKED_DEVICE = np.arange(1, dtype=np.uint64)
_PASSED_ON = (FedrayError, DamagedExamples)
"""What a user's source may raise: a mistake that is told already, and one client's damaged data."""
_T = TypeVar("_T")


class Partitioned(Protocol):
    """Partitions of a data set, numbered from 0, such as a partitioner of Flower Datasets.

    num_partitions: how many there are.
    """

    num_partitions: int

    def load_partition(self, partition_id: int) -> Any:
        """One partition: `partition[column]` gives a column of all of its examples."""
        ...


def custom_source(scenario: Scenario, table: CustomData) -> ExampleSource:
    """What the user's `data(seed)` gives, as a source.

    Of partitions all are loaded once when they are opened, to count their examples.

    Args:
        scenario: says seed and devices.
        table: its table of the data.

    Raises:
        InputError: the code fails, or gives something else.
    """
    make = function_in(table, FUNCTION)
    told = f"data.file={table.file!r}"
    made = called(f"{told}: {FUNCTION}()", lambda: make(scenario.seed), _PASSED_ON)
    if hasattr(made, "load_partition") and hasattr(made, "num_partitions"):
        reader = _Partitions(made, table.tokens or table.inputs)
        return RecordedExamples(scenario, table, lambda folder: reader, None)
    names = ("fields", "held_out_devices", "optimum", "examples_on", "examples")
    lacking = [name for name in names if not hasattr(made, name)]
    if lacking:
        raise ScenarioError(
            f"{told}: {FUNCTION}() gave a {type(made).__name__} without {', '.join(lacking)}; "
            "give an ExampleSource (clients/data/source.py), or an object with num_partitions and "
            "load_partition"
        )
    return _Checked(made, told)


class _Partitions:
    """See clients.data.readers.reader.ClientFile; a client is found by its number."""

    def __init__(self, partitions: Partitioned, column: str) -> None:
        self._partitions, self._column = partitions, column

    def clients(self) -> Iterator[Client]:
        """See ClientFile."""
        count = _called_data("num_partitions", lambda: int(self._partitions.num_partitions))
        digits = len(str(max(0, count - 1)))
        for number in range(count):
            client = Client("", f"{number:0{digits}}", 0, number, number + 1)
            examples = len(self.read(client, (self._column,))[self._column])
            yield client._replace(examples=examples)

    def gathered(self) -> None:
        """See ClientFile: a client has one place here."""

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """See ClientFile."""

        def load() -> dict[str, Column]:
            partition = self._partitions.load_partition(client.first)
            found = {column: partition[column] for column in columns}
            return {
                column: values if isinstance(values, np.ndarray) else list(values)
                for column, values in found.items()
            }

        return _called_data(f"partition {client.first}", load)


class _Checked:
    """A user's source, whose errors are told in one line."""

    def __init__(self, source: ExampleSource, told: str) -> None:
        self._source, self._told = source, told
        self.fields: Mapping[str, Field] = source.fields
        self.held_out_devices, self.optimum = source.held_out_devices, source.optimum
        if not isinstance(self.fields, Mapping) or not all(
            isinstance(field, Field) for field in self.fields.values()
        ):
            self._refuse("`fields` must be clients.data.source.Field by name")
        self.examples_on(_ANY_CHECKED_DEVICE)

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """See ExampleSource."""
        counts = called(
            f"{self._told}: examples_on()",
            lambda: np.asarray(self._source.examples_on(device_ids)),
            _PASSED_ON,
        )
        if counts.shape != device_ids.shape or counts.dtype.kind not in "iu":
            self._refuse("examples_on() must give a whole number for each device")
        if counts.size and (counts.min() < 0 or counts.max() >= 2**32):
            self._refuse("examples_on() must give numbers from 0 to 2^32 - 1")
        return counts.astype(np.int64)

    def examples(
        self, device_ids: NDArray[np.uint64], positions: NDArray[np.int64]
    ) -> dict[str, NDArray]:
        """See ExampleSource."""
        given = called(
            f"{self._told}: examples()",
            lambda: self._source.examples(device_ids, positions),
            _PASSED_ON,
        )
        if not isinstance(given, dict) or given.keys() != self.fields.keys():
            self._refuse(f"examples() must give a dict of {', '.join(self.fields)}")
        found = {}
        for name, field in self.fields.items():
            values, shape = np.asarray(given[name]), (*positions.shape, *field.shape)
            if values.shape != shape:
                self._refuse(f"examples() gave {name!r} of shape {values.shape}, not {shape}")
            found[name] = values.astype(np.float32 if field.kind == "real" else np.int64)
        return found

    def _refuse(self, rule: str) -> NoReturn:
        raise ScenarioError(f"{self._told}: {rule}; correct it")


def _called_data(what: str, call: Callable[[], _T]) -> _T:
    """What a user's partitions give. Raises Damaged where they fail."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # whatever a user's code may raise
        raise Damaged(f"{what} cannot be loaded ({type(error).__name__}: {error})") from None
