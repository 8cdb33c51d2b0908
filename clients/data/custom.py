"""Data of the user's own: a source of examples, or partitions such as those of Flower Datasets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import FedrayError, ScenarioError
from fedray.clients.data.readers.reader import Client, Column, Damaged
from fedray.clients.data.recorded import RecordedExamples
from fedray.clients.data.source import DamagedExamples, ExampleSource, Field
from fedray.clients.python_file import called, function_in
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
        """The partition of a number `partition_id`, from 0 on.

        `partition[column]` gives a column of all of its examples.
        """
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
        # There is no digest, because what a user's code gives cannot be told by its content.
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
    """See fedray.clients.data.readers.reader.ClientFile; a client is found by its number."""

    def __init__(self, partitions: Partitioned, column: str) -> None:
        self._partitions, self._column = partitions, column

    def clients(self) -> Iterator[Client]:
        """Every partition, in order of their numbers.

        Names have leading zeros, so that the order of the names is that of the numbers.
        """
        count = _called_data("num_partitions", lambda: int(self._partitions.num_partitions))
        digits = len(str(max(0, count - 1)))
        for number in range(count):
            name = f"{number:0{digits}}"
            client = Client("", name, examples=0, first=number, end=number + 1)
            columns = self.read(client, (self._column,))
            yield client._replace(examples=len(columns[self._column]))

    def gathered(self) -> None:
        """See ClientFile: a client has one place here."""

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        """The `columns` of the partition that is a `client`.

        Raises:
            Damaged: the user's code fails.
        """

        def load() -> dict[str, Column]:
            partition = self._partitions.load_partition(client.first)
            found: dict[str, Column] = {}
            for column in columns:
                values = partition[column]
                found[column] = values if isinstance(values, np.ndarray) else list(values)
            return found

        return _called_data(f"partition {client.first}", load)


class _Checked:
    """A user's source, whose errors are told in one line."""

    def __init__(self, source: ExampleSource, told: str) -> None:
        self._source = source
        self._told = told
        self.fields: Mapping[str, Field] = source.fields
        self.held_out_devices = source.held_out_devices
        self.optimum = source.optimum
        has_fields = isinstance(self.fields, Mapping) and all(
            isinstance(field, Field) for field in self.fields.values()
        )
        if not has_fields:
            self._refuse("`fields` must be fedray.clients.data.source.Field by name")
        # A source that fails at once is refused at once, and not when the first round is trained.
        self.examples_on(_ANY_CHECKED_DEVICE)

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many examples the user's source has of each of `device_ids`, [G].

        Raises:
            ScenarioError: the user's code fails, or they are no counts.
        """

        def call() -> NDArray:
            return np.asarray(self._source.examples_on(device_ids))

        counts = called(f"{self._told}: examples_on()", call, _PASSED_ON)
        if counts.shape != device_ids.shape or counts.dtype.kind not in "iu":
            self._refuse("examples_on() must give a whole number for each device")
        if counts.size and (counts.min() < 0 or counts.max() >= 2**32):
            self._refuse("examples_on() must give numbers from 0 to 2^32 - 1")
        return counts.astype(np.int64)

    def examples(
        self,
        device_ids: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> dict[str, NDArray]:
        """The user's examples of `device_ids` [G] at each one's `positions` [G, B].

        Raises:
            ScenarioError: the user's code fails, or gives other fields or shapes.
        """

        def call() -> dict[str, NDArray]:
            return self._source.examples(device_ids, positions)

        given = called(f"{self._told}: examples()", call, _PASSED_ON)
        if not isinstance(given, dict) or given.keys() != self.fields.keys():
            self._refuse(f"examples() must give a dict of {', '.join(self.fields)}")
        found = {}
        for name, field in self.fields.items():
            values = np.asarray(given[name])
            shape = (*positions.shape, *field.shape)
            if values.shape != shape:
                self._refuse(f"examples() gave {name!r} of shape {values.shape}, not {shape}")
            # A user's arrays may be of any type of number; tasks rely on these two.
            kind = np.float32 if field.kind == "real" else np.int64
            found[name] = values.astype(kind)
        return found

    def _refuse(self, rule: str) -> NoReturn:
        raise ScenarioError(f"{self._told}: {rule}; correct it")


def _called_data(what: str, call: Callable[[], _T]) -> _T:
    """What a user's partitions give. Raises Damaged where they fail."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        # A user's code may raise anything.
        raise Damaged(f"{what} cannot be loaded ({type(error).__name__}: {error})") from None
