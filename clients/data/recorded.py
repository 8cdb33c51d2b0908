"""Recorded data as an example source: an index, a reader, a form, and an assignment to devices."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import InputError, one_line
from fedray.base.kept import keep, read_kept
from fedray.scenario import Scenario
from fedray.scenario.data import (
    AnyRecordedData,
    AssignedData,
    CustomData,
    FormedData,
    SourceCodeData,
)
from fedray.scenario.data_file import PLACES
from fedray.wire.members import are_members
from .assignment import Assignment, drawn_order, held_out_places
from .cache import content_cache
from .form import Contents, Counting, Form
from .index import Index, indexed
from .readers.reader import Client, ClientFile, Column, Damaged, NoColumn, damage
from .source import (
    DamagedExamples,
    Examples,
    Fields,
    Ids,
    Integers,
    OnRead,
)

DECODED_BYTES = 128 << 20
"""Memory for decoded clients, which are likely to be needed again, bytes."""
MOST_COUNTED = 1 << 28
"""Largest population of which the devices of each client are counted, in seconds or a minute."""
COUNTED_AT_ONCE = 1 << 20
"""Number of devices whose clients are counted together."""
# Version of entries in the cache.
_VERSION = 2
# Keys that do not affect entries in the cache.
_OF_THE_DEVICES = {"tie", "tie_strength", "tie_order"}


@dataclass(frozen=True, slots=True)
class _Split:
    """Places in the index of clients that devices have [N], and of held-out clients [H]."""

    trained: Integers
    held_out: Integers


class RecordedExamples:
    """Examples of recorded clients, assigned to devices.

    See fedray.clients.data.source.ExampleSource.

    Args:
        scenario: scenario with seed and devices.
        table: its table of the data.
        make_reader: function that opens the data.
        digest: SHA-256 of the data; None for data that may change, which is not cached.
        on_read: listener for data that is read as a whole, to count words or values.

    Raises:
        InputError: the data cannot be read, or does not fit the table.

    words: vocabulary of a text in words, in order of their numbers; empty for other data.
    """

    def __init__(
        self,
        scenario: Scenario,
        table: AnyRecordedData | CustomData,
        make_reader: Callable[[], ClientFile],
        digest: str | None,
        on_read: OnRead | None = None,
    ) -> None:
        self._on_read = on_read or (lambda clients, count: None)
        self._table = table
        self._columns = _columns(table)
        self._where = f"data ({table.kind})"
        try:
            if digest is None:
                self._open(make_reader(), None)
            else:
                with content_cache(digest) as folder:
                    self._open(make_reader(), folder)
        except InputError:
            raise
        except (Damaged, ValueError) as error:
            is_misnamed = isinstance(error, NoColumn)
            remedy = "name one of them" if is_misnamed else "correct the data, or the table `data`"
            raise InputError(one_line(f"{self._where}: {error}; {remedy}")) from None
        self.fields: Fields = self._form.fields
        self.words: tuple[str, ...] = self._form.words
        self.optimum: Mapping[str, float] = {}
        # `Assignment` numbers held-out clients after the others.
        self._places = np.concatenate([self._split.trained, self._split.held_out])
        self.held_out_devices = self._split.held_out.size
        counts = self._index.examples[self._split.trained]
        self._assignment = Assignment(scenario, table, counts, self.held_out_devices)
        self._decoded: OrderedDict[int, Examples] = OrderedDict()
        self._decoded_bytes = 0

    def examples_on(self, device_ids: Ids) -> Integers:
        places = self._places[self._assignment.places(device_ids)]
        return self._index.examples[places]

    def people(self, scenario: Scenario) -> dict[str, int]:
        """Returns the number of `clients` that train and `most_devices` of one, counted over all
        ids of a scenario; of more than MOST_COUNTED ids a bound, or no `most_devices` if data is
        tied to traits. Empty if clients are no people, as modules of source code."""
        if isinstance(self._table, SourceCodeData):
            return {}
        clients = self._split.trained.size
        if scenario.device_ids > MOST_COUNTED:
            if self._assignment.is_tied:
                # The key is missing, so that an audit says that the number is unknown.
                return {"clients": clients}
            # Ids take turns; some of them may be no members.
            return {"clients": clients, "most_devices": -(-scenario.device_ids // clients)}
        devices = np.zeros(clients, np.int64)
        for first in range(0, scenario.device_ids, COUNTED_AT_ONCE):
            last = min(first + COUNTED_AT_ONCE, scenario.device_ids)
            ids = np.arange(first, last, dtype=np.uint64)
            places = self._assignment.places(ids[are_members(scenario, ids)])
            devices += np.bincount(places, minlength=devices.size)
        return {"clients": clients, "most_devices": int(devices.max())}

    def examples(self, device_ids: Ids, positions: Integers) -> Examples:
        places = self._places[self._assignment.places(device_ids)]
        found = {
            name: np.empty((*positions.shape, *field.shape), field.dtype)
            for name, field in self.fields.items()
        }
        problems: dict[int, str] = {}
        # The error names all devices with damaged data, so every device is tried.
        for row, place in enumerate(places):
            try:
                client = self._client(int(place))
            except ValueError as error:
                problems[int(device_ids[row])] = one_line(f"{self._where}: {error}")
                continue
            for name, values in client.items():
                found[name][row] = values[positions[row]]
        if problems:
            raise DamagedExamples(problems)
        return found

    def _open(self, reader: ClientFile, folder: Path | None) -> None:
        # The names of cache files depend on all settings that affect their content.
        left_out = set(PLACES) | _OF_THE_DEVICES
        settings = self._table.model_dump(mode="json", exclude=left_out)
        request = json.dumps({"version": _VERSION, **settings}, sort_keys=True)
        name = hashlib.sha256(request.encode()).hexdigest()[:32]
        index_file = None if folder is None else folder / f"{name}.index"
        self._reader, self._index = reader, indexed(reader, index_file, request)
        self._split = _splits(self._index, self._table)
        contents_file = None if folder is None else folder / f"{name}.contents"
        contents = None if contents_file is None else _kept_contents(contents_file, request)
        if contents is None:
            contents = self._counted()
            if contents_file is not None:
                keep(contents_file, request, contents.to_bytes())
        self._form = Form(self._table, contents)

    def _counted(self) -> Contents:
        """Reads clients until the contents of the data are known."""
        counting = Counting(self._table)
        # Words are counted only in trained clients, but the largest value in all of them.
        splits = ((self._split.trained, True), (self._split.held_out, False))
        count = self._split.trained.size + self._split.held_out.size
        read = 0
        for places, is_trained_on in splits:
            for place in self._index.reading_order(places):
                if not counting.needs_more:
                    break
                self._on_read(read, count)
                read += 1
                client = self._index.client(int(place))
                if client.examples:
                    with damage(f"client {client.name!r}", ValueError):
                        counting.add(self._read(client), is_trained_on)
        return counting.contents()

    def _read(self, client: Client) -> dict[str, Column]:
        return self._reader.read(client, self._columns)

    def _client(self, place: int) -> Examples:
        """Returns all examples of a client, or raises ValueError."""
        known = self._decoded.get(place)
        if known is not None:
            self._decoded.move_to_end(place)
            return known
        client = self._index.client(place)
        with damage(f"client {client.name!r}", ValueError):
            found = self._form.examples(self._read(client), client.examples)
        self._decoded[place] = found
        self._decoded_bytes += _bytes_of(found)
        # The least recently used clients go first; the new one stays at any size.
        while self._decoded_bytes > DECODED_BYTES and len(self._decoded) > 1:
            _, oldest = self._decoded.popitem(last=False)
            self._decoded_bytes -= _bytes_of(oldest)
        return found


def _bytes_of(fields: Mapping[str, NDArray]) -> int:
    return sum(values.nbytes for values in fields.values())


def _columns(table: FormedData) -> tuple[str, ...]:
    if table.tokens:
        return (table.tokens,)
    names = [name for name in (table.inputs, table.targets) if name]
    # One column may be both.
    return tuple(dict.fromkeys(names))


def _kept_contents(file: Path, request: str) -> Contents | None:
    try:
        content = read_kept(file, request)
    except ValueError:
        # A damaged entry is counted again.
        return None
    return None if content is None else Contents.from_bytes(content)


def _splits(index: Index, table: AssignedData) -> _Split:
    """Splits clients into trained and held-out ones, or raises ValueError."""
    # Data with splits `train` and `test`, as in most benchmarks, needs no keys; a single split is
    # trained on under any name.
    names = index.splits
    split = getattr(table, "split", "")
    held_out_split = getattr(table, "held_out_split", "")
    if not split:
        split = names[0] if len(names) == 1 else "train"
    if not held_out_split and "test" in names and split != "test":
        held_out_split = "test"
    for key, name in (("split", split), ("held_out_split", held_out_split)):
        if name not in names and (name or key == "split"):
            raise ValueError(f"{key}={name!r} is not in the data, which has {', '.join(names)}")
    if held_out_split and split == held_out_split:
        raise ValueError(f"held_out_split={held_out_split!r} is the split that is trained on")
    places = index.places(split)
    if held_out_split:
        # Models are evaluated on the first clients, and similar names may mean similar clients, so
        # the order is random.
        return _Split(places, drawn_order(index.places(held_out_split)))
    if places.size < 2:
        raise ValueError(
            f"split {split!r} has a single client, so none can be held out; give data of several "
            "clients"
        )
    chosen = held_out_places(places.size, table.held_out_share)
    # A mask keeps the trained clients in order of their names.
    is_held_out = np.zeros(places.size, np.bool_)
    is_held_out[chosen] = True
    return _Split(places[~is_held_out], places[chosen])
