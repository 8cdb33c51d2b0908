"""Recorded data as a source of examples: an index, a reader, a form, and who has which client."""

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
from fedray.clients.data.assignment import Assignment, drawn_order, held_out_places
from fedray.clients.data.cache import content_cache
from fedray.clients.data.form import Contents, Counting, Form
from fedray.clients.data.index import Index, indexed
from fedray.clients.data.readers.reader import ClientFile, Damaged
from fedray.clients.data.source import DamagedExamples, Field, OnRead
from fedray.scenario import Scenario
from fedray.scenario.data import AnyRecordedData, AssignedData, CustomData, FormedData
from fedray.scenario.data_file import PLACES

DECODED_BYTES = 128 << 20
"""Memory for clients that were read, so that those that are asked for again need not be."""
_VERSION = 1
"""Version of what is kept in the cache."""
_OF_THE_DEVICES = {"tie", "tie_strength", "tie_order"}
"""Keys that change nothing of what is kept."""


@dataclass(frozen=True, slots=True)
class _Split:
    """Places [N] in the index of the clients that devices have, and [H] of those held out."""

    trained: NDArray[np.int64]
    held_out: NDArray[np.int64]


class RecordedExamples:
    """Examples of recorded clients, given to devices; see fedray.clients.data.source.ExampleSource.

    Args:
        scenario: says seed and devices.
        table: its table of the data.
        make_reader: opens the data, given the folder in the cache for its content.
        digest: SHA-256 of the data; None for data that cannot be told by its content, of which
            nothing is kept in the cache.
        on_read: is told how far the data is if it is read as a whole, to count words or values.

    Raises:
        InputError: the data cannot be read, or is not what the table says.

    words: the vocabulary of a text in words, in order of their numbers; empty for other data.
    """

    def __init__(
        self,
        scenario: Scenario,
        table: AnyRecordedData | CustomData,
        make_reader: Callable[[Path], ClientFile],
        digest: str | None,
        on_read: OnRead | None = None,
    ) -> None:
        self._on_read = on_read or (lambda clients, count: None)
        self._table = table
        self._where = f"data ({table.kind})"
        try:
            # Nothing is kept of such data, because nobody could tell later whether it has changed.
            if digest is None:
                self._open(make_reader(Path()), None)
            else:
                with content_cache(digest) as folder:
                    self._open(make_reader(folder), folder)
        # Mistakes that are told already pass; the others are told together with their table.
        except InputError:
            raise
        except (Damaged, ValueError) as error:
            raise InputError(
                one_line(f"{self._where}: {error}; correct the data, or the table `data`")
            ) from None
        self.fields: Mapping[str, Field] = self._form.fields
        self.words: tuple[str, ...] = self._form.words
        self.optimum: Mapping[str, float] = {}
        # Held-out clients lie behind the others, because `Assignment` numbers them so.
        self._places = np.concatenate([self._split.trained, self._split.held_out])
        self.held_out_devices = self._split.held_out.size
        counts = self._index.examples[self._split.trained]
        self._assignment = Assignment(scenario, table, counts, self.held_out_devices)
        self._decoded: OrderedDict[int, dict[str, NDArray]] = OrderedDict()
        self._decoded_bytes = 0

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many examples the client of each of `device_ids` has, [G]."""
        places = self._places[self._assignment.places(device_ids)]
        return self._index.examples[places]

    def examples(
        self,
        device_ids: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> dict[str, NDArray]:
        """The examples of the clients of `device_ids` [G] at each one's `positions` [G, B].

        Raises:
            DamagedExamples: the data of some clients cannot be read; it names all of their devices.
        """
        places = self._places[self._assignment.places(device_ids)]
        found: dict[str, NDArray] = {}
        for name, field in self.fields.items():
            kind = np.float32 if field.kind == "real" else np.int64
            found[name] = np.empty((*positions.shape, *field.shape), kind)
        problems: dict[int, str] = {}
        # Every device is tried, so that one error names all whose data is damaged.
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
        """Index and contents, from the cache if there is a folder."""
        # Whatever may change what is found is in the name of what is kept, so that other settings
        # make files of their own.
        left_out = set(PLACES) | _OF_THE_DEVICES
        settings = self._table.model_dump(mode="json", exclude=left_out)
        request = json.dumps({"version": _VERSION, **settings}, sort_keys=True)
        name = hashlib.sha256(request.encode()).hexdigest()[:32]
        file = None if folder is None else folder / f"{name}.index"
        self._index, self._reader = indexed(reader, file, request)
        self._split = _splits(self._index, self._table)
        self._columns = _columns(self._table)
        contents = None if folder is None else _kept_contents(folder / f"{name}.contents", request)
        if contents is None:
            contents = self._counted()
            if folder is not None:
                keep(folder / f"{name}.contents", request, contents.to_bytes())
        self._form = Form(self._table, contents)

    def _counted(self) -> Contents:
        """What the data has, from as many clients as it takes to know."""
        counting = Counting(self._table)
        # Words are counted in trained clients alone, but the largest value in all of them.
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
                if not client.examples:
                    continue
                try:
                    columns = self._reader.read(client, self._columns)
                    counting.add(columns, is_trained_on)
                except Damaged:
                    raise
                except ValueError as error:
                    raise Damaged(f"client {client.name!r}: {error}") from None
        return counting.contents()

    def _client(self, place: int) -> dict[str, NDArray]:
        """All examples of one client. Raises ValueError."""
        known = self._decoded.get(place)
        if known is not None:
            # The one that was not used for longest is forgotten first.
            self._decoded.move_to_end(place)
            return known
        client = self._index.client(place)
        try:
            columns = self._reader.read(client, self._columns)
            found = self._form.examples(columns, client.examples)
        except Damaged:
            raise
        except ValueError as error:
            raise Damaged(f"client {client.name!r}: {error}") from None
        self._decoded[place] = found
        self._decoded_bytes += _bytes_of(found)
        # The one that was just read stays, however large it is.
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
        # It is damaged, and found anew.
        return None
    return None if content is None else Contents.from_bytes(content)


def _splits(index: Index, table: AssignedData) -> _Split:
    """Who is trained on and who is held out, as the table says. Raises ValueError."""
    # Data with a train and a test split, as most benchmarks have it, needs no keys; a single split
    # is trained on, whatever its name.
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
        # In a drawn order, because models are evaluated on the first ones, and clients whose names
        # are alike may be alike.
        return _Split(places, drawn_order(index.places(held_out_split)))
    if places.size < 2:
        raise ValueError(
            f"split {split!r} has a single client, of which none can be held out; give data of "
            "several clients"
        )
    chosen = held_out_places(places.size, table.held_out_share)
    # A mask keeps the clients that are trained on in order of their names.
    is_held_out = np.zeros(places.size, np.bool_)
    is_held_out[chosen] = True
    return _Split(places[~is_held_out], places[chosen])
