"""A user's own data: an example source, or partitions as from Flower Datasets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import FedrayError, ScenarioError
from fedray.scenario import Scenario
from fedray.scenario.data import CustomData
from fedray.scenario.python_file import called, function_in, not_installed
from .readers.reader import Client, ClientFile, Column, Damaged
from .recorded import RecordedExamples
from .source import (
    DamagedExamples,
    Examples,
    ExampleSource,
    Field,
    Fields,
    Ids,
    Integers,
)

FUNCTION = "data"
_ANY_CHECKED_DEVICE = np.arange(1, dtype=np.uint64)
# Errors that a user's source may raise: mistakes with a message, and one client's damaged data.
_PASSED_ON = (FedrayError, DamagedExamples)
_T = TypeVar("_T")


class Partitioned(Protocol):
    """Partitions of a data set, numbered from 0, such as a partitioner of Flower Datasets."""

    num_partitions: int
    """Number of partitions."""

    def load_partition(self, partition_id: int) -> Any:
        """Returns a partition; `partition[column]` is a column of all of its examples."""
        ...


def custom_source(scenario: Scenario, table: CustomData) -> ExampleSource:
    """Returns the result of the user's `data(seed)` as a source.

    All partitions are loaded once at the start, to count their examples.

    Raises:
        InputError: the code fails, or returns something else.
    """
    make = function_in(table, FUNCTION)
    subject = f"data.file={table.file!r}"
    made = called(f"{subject}: {FUNCTION}()", lambda: make(scenario.seed), _PASSED_ON)
    if hasattr(made, "load_partition") and hasattr(made, "num_partitions"):
        reader = _Partitions(made, table.tokens or table.inputs)
        # Without a digest, because the content behind a user's code is unknown.
        return RecordedExamples(scenario, table, lambda: reader, None)
    names = ("fields", "held_out_devices", "optimum", "examples_on", "examples")
    lacking = [name for name in names if not hasattr(made, name)]
    if lacking:
        raise ScenarioError(
            f"{subject}: {FUNCTION}() gave a {type(made).__name__} without {', '.join(lacking)}; "
            "return an ExampleSource (clients/data/source.py), or an object with num_partitions "
            "and load_partition"
        )
    return _Checked(made, subject)


class _Partitions(ClientFile):
    """Reads partitions as clients, which are found by their numbers."""

    def __init__(self, partitions: Partitioned, column: str) -> None:
        self._partitions = partitions
        self._column = column

    def clients(self) -> Iterator[Client]:
        count = _called_data("num_partitions", lambda: int(self._partitions.num_partitions))
        # Leading zeros make the order of the names that of the numbers.
        digits = len(str(max(0, count - 1)))
        for number in range(count):
            name = f"{number:0{digits}}"
            client = Client("", name, examples=0, first=number, end=number + 1)
            columns = self.read(client, (self._column,))
            yield client._replace(examples=len(columns[self._column]))

    def read(self, client: Client, columns: Sequence[str]) -> dict[str, Column]:
        def load() -> dict[str, Column]:
            partition = self._partitions.load_partition(client.first)
            found: dict[str, Column] = {}
            for column in columns:
                values = partition[column]
                found[column] = values if isinstance(values, np.ndarray) else list(values)
            return found

        return _called_data(f"partition {client.first}", load)


class _Checked:
    """A user's source. Its methods raise ScenarioError for failures and wrong results."""

    def __init__(self, source: ExampleSource, subject: str) -> None:
        self._source = source
        self._subject = subject
        self.fields: Fields = source.fields
        self.held_out_devices = source.held_out_devices
        self.optimum = source.optimum
        has_fields = isinstance(self.fields, Mapping) and all(
            isinstance(field, Field) for field in self.fields.values()
        )
        if not has_fields:
            self._refuse("`fields` must be fedray.clients.data.source.Field by name")
        # A source that always fails is refused now, not in the first round.
        self.examples_on(_ANY_CHECKED_DEVICE)

    def examples_on(self, device_ids: Ids) -> Integers:
        def call() -> NDArray:
            return np.asarray(self._source.examples_on(device_ids))

        counts = self._called("examples_on", call)
        if counts.shape != device_ids.shape or counts.dtype.kind not in "iu":
            self._refuse("examples_on() must give a whole number for each device")
        if counts.size and (counts.min() < 0 or counts.max() >= 2**32):
            self._refuse("examples_on() must give numbers from 0 to 2^32 - 1")
        return counts.astype(np.int64)

    def examples(self, device_ids: Ids, positions: Integers) -> Examples:
        given = self._called("examples", lambda: self._source.examples(device_ids, positions))
        if not isinstance(given, dict) or given.keys() != self.fields.keys():
            self._refuse(f"examples() must give a dict of {', '.join(self.fields)}")
        found = {}
        for name, field in self.fields.items():
            values = np.asarray(given[name])
            shape = (*positions.shape, *field.shape)
            if values.shape != shape:
                self._refuse(f"examples() gave {name!r} of shape {values.shape}, not {shape}")
            # Tasks rely on the number types of fields; a user's arrays may have any. Compiled steps
            # read rows of tables by whole numbers, unchecked.
            found[name] = values.astype(field.dtype)
            if field.kind == "whole" and values.size:
                least, most = int(found[name].min()), int(found[name].max())
                if least < 0 or most >= field.values:
                    self._refuse(
                        f"examples() gave {name!r} from {least} to {most}, and its field says "
                        f"{field.values} values: 0 to {field.values - 1}"
                    )
        return found

    def _called(self, name: str, call: Callable[[], _T]) -> _T:
        return called(f"{self._subject}: {name}()", call, _PASSED_ON)

    def _refuse(self, rule: str) -> NoReturn:
        raise ScenarioError(f"{self._subject}: {rule}; correct it")


def _called_data(what: str, call: Callable[[], _T]) -> _T:
    """Returns the result of a user's partitions. Raises ScenarioError for a missing package, and
    Damaged for any other error."""
    try:
        return call()
    except ModuleNotFoundError as error:
        raise not_installed(f"data: {what}", error) from None
    except (Exception, SystemExit) as error:
        raise Damaged(f"{what} cannot be loaded ({type(error).__name__}: {error})") from None
