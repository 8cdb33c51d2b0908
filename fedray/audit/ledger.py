"""A ledger of privacy spent over runs, by device and calendar window.

    LEDGER/
      ledger.jsonl       the budget, then a line per reservation, charge or cancellation: a chain
                         of digests (fedray/base/chain.py)
      SHA256.arrow       units and their rho, or their answers, in one window of one charge; named
                         by its content
      lock               held while the ledger is written

The unit of privacy is a device, or a person with all devices, in a window: all that it contributed
to rounds that were released in that window, of any run. Its rho in a run is that of its rounds in
the window, and rho adds up over runs, also if runs are chosen by earlier results (Bun and Steinke
2016, Lemma 1.7), but only if their noise is independent: runs and trainings that share their noise
are refused, because the difference of their models would have none. Answers to a question compose
with them as in an audit. Units are known by the keys of their ids (fedray/trace/ids.py), because
each log may write them in its own way (fedray/audit/ledger_sums.py).

A log that may be a charged release is charged only with a name: a new one makes it another release,
that of a charge makes it a version of that release. Of the versions a unit spent the largest rho,
by its key; by its name only if the ids of all versions were stated to be distinct. So a correction
never lowers what is spent.

A run is reserved at its worst case before it starts and charged at its end, so that neither a crash
nor a second run at the same time can spend more than the budget. Files of devices are written and
synced before the line that names them: after a crash a charge is in the ledger as a whole or not at
all, and charging again changes nothing.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.audit.audit import Audit
from fedray.audit.distribution import device_sensitivities
from fedray.audit.ledger_lines import (
    MOST_AMOUNT,
    NAME,
    Budget,
    Cancelled,
    Charged,
    Line,
    Promise,
    Release,
    Reserved,
    Spent,
    Vocabulary,
    read_lines,
)
from fedray.audit.ledger_sums import Charge, Spending, components_of, summed, total_of
from fedray.audit.noise import ServerNoise, released
from fedray.audit.participation import Patterns
from fedray.audit.persons import joined_by_owner
from fedray.audit.questions import ONLY_ANSWERS, charged_plan, vocabulary_cost
from fedray.base.arrays import Float64Array
from fedray.base.atomic import replace_file
from fedray.base.chain import append_to_chain, read_chain
from fedray.base.document import InJson
from fedray.base.errors import InputError, RunFailed
from fedray.base.periods import PERIODS
from fedray.base.regular_file import open_regular_file
from fedray.base.result import Result
from fedray.base.rounding import counted, given, up
from fedray.base.storage import local_path
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.scenario import Scenario
from fedray.trace.ids import keys_of
from fedray.trace.imported import PERIOD, ImportedTrace, imported_digest
from fedray.trace.partial import Lock
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

CHAIN_FILE = "ledger.jsonl"
_ROLES = {"device": "device", "person": "owner"}
"""Column of a log by the unit of a budget."""
ROUNDING = 1e-9
"""Relative error of sums of rho that does not count as exceeding the budget."""
LOCK_SECONDS = 10.0
"""Longest wait for another process that writes the ledger."""
# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


class WindowSpent(NamedTuple):
    """Privacy that devices, or persons, spent in one window."""

    window: str
    """Name of the window, such as 2026-Q4."""
    units: int
    """Number of devices, or persons, that were charged."""
    respelled: int
    """Number of them that were summed over several spellings of their ids."""
    recorded: float
    """Largest rho of a unit over all charges, as recorded."""
    spent: float
    """Largest rho of a unit, at most: for each run what its rules enforce, or what is recorded if
    they enforce nothing."""
    reserved: float
    """rho reserved for runs that have not been charged, for every unit."""
    epsilon: float
    """Largest epsilon of a unit at the budget's delta, of all that is spent and reserved; infinite
    if the deltas of its answers use up that delta."""
    is_within: bool
    """Whether that is within the budget."""
    may_rest_on: bool
    """Whether a guarantee may rest on `spent`, because every run enforced it."""


@dataclass(frozen=True)
class Ledger(Result):
    """An opened ledger, all of whose lines have their digests; those of files are checked when they
    are read, so before any figure is shown."""

    TABLES: ClassVar[str] = "fedray.report.audits:ledger_tables"

    path: Path
    """Directory of the ledger."""
    entries: tuple[dict[str, Any], ...]
    """Lines of the ledger in order: the budget, reservations, charges and cancellations."""

    @classmethod
    def create(
        cls, path: str | Path, epsilon: float, delta: float, period: str, unit: str = "device"
    ) -> Self:
        """Makes a ledger with a budget of each device, or of each person, and window.

        Raises:
            InputError: the ledger exists, or a value is out of range.
        """
        given: Any = {"epsilon": epsilon, "delta": delta, "period": period, "unit": unit}
        budget = Budget(format=3, **given)
        place = local_path(path)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            rule = f"cannot be made ({error.strerror or error})"
            raise InputError.of("ledger", str(path), rule, "name another directory") from None
        with cls(place, ())._locked(is_new=True) as new:
            return new._with([budget])

    @classmethod
    def open(cls, path: str | Path, head: str | None = None) -> Self:
        """Opens a ledger and checks the digests of its lines.

        Args:
            path: directory of the ledger.
            head: head of the ledger at an earlier time, which it must continue.

        Raises:
            InputError: it is not a ledger, a line was changed or has wrong values, or `head` is not
                in it.
        """
        place = local_path(path)
        try:
            entries = read_chain(place / CHAIN_FILE)
        except OSError as error:
            rule = f"is not a ledger ({error.strerror or error})"
            remedy = (
                "name one, or make it by `fedray budget`, with an epsilon, a delta and a period"
            )
            raise InputError.of("ledger", str(path), rule, remedy) from None
        if head is not None and head not in {each["digest"] for each in entries}:
            rule = "is no line of this ledger, so lines were removed or all written again"
            raise InputError.of("head", head, rule, "restore the ledger from a copy")
        if not entries:
            raise InputError.of("ledger", str(path), "is empty", "restore it from a copy")
        found = cls(place, tuple(entries))
        _ = found.lines
        return found

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Lines of the ledger as tables, in order. Raises InputError if one has wrong values."""
        return read_lines(str(self.path / CHAIN_FILE), self.entries)

    @property
    def head(self) -> InJson[str]:
        """Digest of the last line. Only a copy kept elsewhere shows that lines were removed."""
        return self.entries[-1]["digest"]

    @property
    def unit(self) -> InJson[str]:
        """Unit of the budget: device or person."""
        return self.entries[0]["unit"]

    @cached_property
    def reservations(self) -> dict[int, Reserved]:
        """Reservations that were neither charged nor cancelled, by the number of their line."""
        closed = {each.closes for each in self.lines if isinstance(each, Charged | Cancelled)}
        lines = enumerate(self.lines, 1)
        return {n: each for n, each in lines if isinstance(each, Reserved) and n not in closed}

    @cached_property
    def charges(self) -> dict[int, Charged]:
        """Charges, by the number of their line."""
        return {n: each for n, each in enumerate(self.lines, 1) if isinstance(each, Charged)}

    @cached_property
    def _by_window(self) -> dict[str, dict[str, list[Charged]]]:
        """Versions of each release, by its name, of each window."""
        found: dict[str, dict[str, list[Charged]]] = {}
        for each in self.charges.values():
            for window in each.windows:
                found.setdefault(window, {}).setdefault(each.name, []).append(each)
        return found

    @cached_property
    def windows(self) -> InJson[tuple[WindowSpent, ...]]:
        """Every window in which anything was charged or is reserved, in order."""
        reserved = {window for each in self.reservations.values() for window in each.windows}
        return tuple(self.spent(each) for each in sorted(self._by_window.keys() | reserved))

    def spent(self, window: str, more: Sequence[Reserved] = ()) -> WindowSpent:
        """Returns the privacy spent in a window, with `more` reserved.

        Raises InputError if a file of the window is missing or was changed.
        """
        releases = [*self._by_window.get(window, {}).values()]
        parts = [[p for each in versions for p in each.windows[window]] for versions in releases]
        open_ones = [e for e in (*self.reservations.values(), *more) if window in e.windows]
        promises: list[tuple[Release, float]] = [
            (each.release, each.amount) for line in open_ones for each in line.windows[window]
        ]
        # A vocabulary was released once, however many runs use it.
        words: dict[Any, tuple[Release, float]] = {
            (each.run, each.sha256, json.dumps(each.event, sort_keys=True)): (each.event, 1.0)
            for line in (*open_ones, *(each for versions in releases for each in versions))
            for each in line.vocabularies
        }
        # Rules bound every unit alike, so their figures add up whoever took part. Runs without
        # rules have only recorded figures, which are added unit by unit.
        by_rules: list[tuple[Release, float]] = [
            (part.release, part.enforced)
            for each in parts
            if _is_enforced(each)
            for part in each
            if part.enforced is not None
        ]
        used = [part.release for each in parts for part in each]
        others = [release for release, _ in (*promises, *words.values())]
        components = components_of([*used, *others])
        found, enforced, reserved = (
            total_of(each, components) for each in (words.values(), by_rules, promises)
        )
        charges = [
            e for place, each in enumerate(releases) for e in self._read(window, place, each)
        ]
        recorded = summed(charges, components).plus(found)
        spent = recorded
        if by_rules:
            rest = [each for each in charges if not _is_enforced(parts[each.place[0]])]
            spent = recorded.beside(summed(rest, components).plus(found + enforced))
        budget = self.entries[0]
        epsilon = spent.plus(reserved).epsilon(budget["delta"])
        return WindowSpent(
            window,
            recorded.units,
            recorded.respelled,
            recorded.rho,
            spent.rho,
            Spending(components, reserved[None]).rho,
            epsilon,
            epsilon <= budget["epsilon"] * (1.0 + ROUNDING),
            all(map(_is_enforced, parts)),
        )

    def _read(self, window: str, place: int, versions: Sequence[Charged]) -> Iterator[Charge]:
        """Yields the charges of the versions of a release."""
        # The ids of another version may be those of one unit.
        by_name = all(each.are_distinct for each in versions)
        for each in versions:
            for number, part in enumerate(each.windows[window]):
                yield Charge((place, number), part.release, *self._units(part), by_name)

    def _units(self, spent: Spent) -> tuple[pa.Array, pa.Array, Float64Array]:
        """Returns names, keys and amounts of the units of a charge. Raises InputError unless its
        file has its digest, and the columns and values of a charge."""
        file = self.path / f"{spent.file}.arrow"
        try:
            with open_regular_file(file) as stream:
                content = stream.read()
            if hashlib.sha256(content).hexdigest() != spent.file:
                raise ValueError("it has another digest")
            table = pa.ipc.open_file(content).get_batch(0)
            table.validate(full=True)
            names, amounts = table[self.unit], table[_column_of(spent.release)].to_numpy()
            names = names if names.type == pa.string() else names.cast(pa.string())
            keys = table["key"] if table.num_columns == 3 else names
            # A missing number is NaN here, which no comparison accepts.
            is_valid = bool(amounts.min() >= 0.0) and bool(amounts.max() <= MOST_AMOUNT)
            is_valid &= not (names.null_count or keys.null_count) and table.num_columns <= 3
            if not (is_valid and amounts.dtype == np.float64 and keys.type == pa.string()):
                raise ValueError("it has wrong values")
            return names, keys, amounts
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError):
            raise InputError(
                f"{str(file)!r}, which the ledger names, is missing or was changed; restore it "
                "from a copy"
            ) from None

    def statement(self) -> str:
        """Returns a privacy statement over all runs as Markdown, a paragraph for each window.

        Raises:
            InputError: a run is reserved and not charged, or a window exceeds the budget.
        """
        if self.reservations:
            line = min(self.reservations)
            rule = "is a reservation of a run that is not charged"
            raise InputError.of("line", line, rule, "charge or cancel it first")
        lines = ["# Privacy over runs"]
        for each in self.windows:
            if not each.is_within:
                raise InputError.of(
                    "window", each.window, "exceeds the budget", "state what was spent, by its runs"
                )
            releases = counted(len(self._by_window[each.window]), "release")
            # An answer with a delta of its own has no rho.
            answers = any(
                not isinstance(part.release, str)
                for versions in self._by_window[each.window].values()
                for version in versions
                for part in version.windows[each.window]
            )
            rho = "" if answers else f", rho {up(each.spent, 6)} (zCDP)"
            basis = (
                "by the rules of every run, whoever took part"
                if each.may_rest_on
                else "as recorded, so only if no participation depended on released models"
            )
            lines.append(
                f"**{each.window}.** Over {releases}, every {self.unit} is protected at (epsilon, "
                f"delta) = ({up(each.epsilon)}, {given(self.entries[0]['delta'])}){rho}, {basis}. "
                f"Adjacency: one {self.unit}'s contributions are replaced by zeros. Whoever adds "
                "the noise is trusted, and every answer, and every model after every round, is "
                "released. When devices took part is not protected."
            )
        if self.unit == "person":
            lines.append("A person has at most as many devices as each run's scenario or log says.")
        lines.append(f"Ledger {self.head}; tuning and releases outside it are not accounted for.")
        return "\n\n".join(lines) + "\n"

    def reserve(
        self,
        run: str,
        promises: Sequence[Promise],
        start: date,
        days: float,
        noise: Collection[str],
        vocabularies: Sequence[Vocabulary] = (),
    ) -> Self:
        """Reserves the worst case of a run that is about to start.

        Args:
            run: digest of the scenario.
            promises: most that a unit may spend on each model and each question of the run.
            start: day on which the run starts (UTC).
            days: longest duration of the run, in days.
            noise: noise of all tasks, from `noise_of`.
            vocabularies: private vocabularies of all tasks.

        Raises:
            InputError: the run might exceed the budget of a window, or shares its noise with
                another release; the ledger is as it was.
        """
        with self._locked() as now:
            # The same run again releases the same models.
            lines = (now.charges | now.reservations).items()
            same = [n for n, each in lines if (each.run, each.start) == (run, start)]
            now._check_noise(noise, same)
            named = PERIODS[now.entries[0]["period"]]
            try:
                days_of_run = [start + timedelta(each) for each in range(math.floor(days) + 2)]
            except OverflowError:
                rule = f"is too late for a run of {days:g} days"
                raise InputError.of("start", start.isoformat(), rule) from None
            windows = {named(each): tuple(promises) for each in days_of_run}
            new = Reserved(
                run=run,
                start=start,
                noise=tuple(noise),
                vocabularies=tuple(vocabularies),
                windows=windows,
            )
            for window in windows:
                found = now.spent(window, [new])
                if not found.is_within:
                    before = now.spent(window)
                    raise InputError(
                        f"ledger {str(self.path)!r}: the run may spend rho "
                        f"{up(found.spent + found.reserved - before.spent - before.reserved, 6)} "
                        f"in {window}, where {up(before.spent, 6)} is spent and "
                        f"{up(before.reserved, 6)} reserved: together epsilon "
                        f"{up(found.epsilon)}, above the budget of "
                        f"{now.entries[0]['epsilon']:g}; nothing was started: add noise, or run in "
                        "another window"
                    )
            return now._with([new])

    def reservation_of(self, run: str, start: date | None) -> int | None:
        """Returns the line of the first open reservation of a scenario's digest, on the day `start`
        if it is given; None if there is none."""
        found = (n for n, each in self.reservations.items() if each.run == run)
        return next((n for n in found if start in (None, self.reservations[n].start)), None)

    def charge(
        self,
        audits: Sequence[Audit],
        start: date | None = None,
        release: str = "",
        trained: TrainedRun | None = None,
    ) -> Self:
        """Charges the privacy that every device, or person, spent in a run, training or log,
        without releases that are in the ledger.

        Args:
            audits: audit of each trace of the run, with its mechanism and noise.
            start: day on which the run started (UTC); None for that of its reservation or of an
                earlier charge of its trace, or for the times of a log.
            release: name of the release of a log; see the module.
            trained: training whose scenario the audit has; None for a run or log.

        Raises:
            InputError: a trace has no mechanism and noise, or no owners for a budget of persons,
                its days are unknown, it shares noise with another release, or a log may be a
                charged release and has no name.
        """
        with self._locked() as now:
            # A training has noise of its own, so it leaves the reservation to its run.
            line = None if trained else now.reservation_of(_run_of(audits[0]), start)
            promised = {} if line is None else now.reservations[line].windows
            charges = now.charges.values()
            starts = {e.start for e in charges if e.noise and e.trace == audits[0].digest}
            start = start or (starts.pop() if len(starts) == 1 else None)
            start = now.reservations[line].start if line else start
            lines: list[Line] = []
            for audit in audits:
                new = _charge_of(audit, start, trained, now.unit)
                now._check_columns(audit, new)
                name = now._name_of(new, release)
                if name:
                    windows = now._windows_of(audit, start, promised, trained)
                    closes = None if lines else line
                    of_line = {"name": name, "closes": closes, "windows": windows}
                    # Unlike a copy, the constructor checks the name.
                    lines.append(Charged(**(dict(new) | of_line)))
            # A run that is charged already spent nothing more, so only its reservation is closed.
            if line is not None and not lines:
                lines.append(Cancelled(closes=line))
            return now._with(lines) if lines else now

    def _name_of(self, new: Charged, given: str) -> str:
        """Returns the name under which a release is charged; empty if it is charged already."""
        same = [n for n, each in self.charges.items() if each.identity == new.identity]
        if new.noise:
            if given:
                rule = "names releases of logs; a run or training is known by its noise"
                raise InputError.of("release", given, rule, "leave it out")
            is_own = {n for n, each in self.reservations.items() if each.run == new.run}
            self._check_noise(new.noise, {*same, *is_own})
            return "" if same else new.name
        if given and not re.fullmatch(NAME, given):
            rule = "must be up to 100 letters, digits and . : - _, the first a letter or digit"
            raise InputError.of("release", given, rule)
        alike = [n for n, each in self.charges.items() if each.may_be(new)]
        for number, each in self.charges.items():
            if given == each.name and number not in alike:
                rule = f"is line {number}, of another mechanism, participations or time"
                raise InputError.of("release", given, rule, "give another name")
            # Without times, nothing shows whether the same participations are the same release.
            if number in same and (given == each.name or (new.first and not given)):
                return ""
        if alike and not given:
            raise InputError(
                f"line {alike[0]} of the ledger has the same mechanism, noise and participations "
                "at times that overlap or are unknown, but not the same times, devices and owners; "
                f"`release={self.charges[alike[0]].name}` makes this a correction of that charge, "
                f"of which each {self.unit} spent the larger rho, and a new name another release"
            )
        return given or new.name

    def _check_columns(self, audit: Audit, new: Charged) -> None:
        """Raises InputError if the units of a log are not those of the ledger."""
        named, columns = f"trace {str(audit.path)!r}", _columns_of(audit.trace, self.unit)
        if any(each.startswith(PERIOD) for each in columns):
            raise InputError(
                f"{named} has devices in a period as units, but a ledger adds up what a device "
                f"spent in its own windows; import the log without {PERIOD}..."
            )
        for number, each in self.charges.items():
            if each.columns != new.columns:
                raise InputError(
                    f"{named} names a {self.unit} by {counted(new.columns, 'column')}, but line "
                    f"{number} of the ledger by {each.columns}, so one of them could count as two; "
                    "import both logs with the same columns"
                )

    def _check_noise(self, noise: Collection[str], allowed: Collection[int]) -> None:
        """Raises InputError if a line that is not allowed to has any of this noise."""
        for number, each in (self.charges | self.reservations).items():
            shared = sorted(set(noise) & set(each.noise))
            if shared and number not in allowed:
                raise InputError(
                    f"ledger {str(self.path)!r}: line {number} has the same noise (seed "
                    f"{shared[0]}), so the difference of the two models has none; set another "
                    "training.seed"
                )

    def cancel(self, number: int) -> Self:
        """Cancels the reservation on line `number`, of a run that released nothing."""
        with self._locked() as now:
            if number not in now.reservations:
                raise InputError.of("cancel", number, "is not the line of an open reservation")
            return now._with([Cancelled(closes=number)])

    def _windows_of(
        self,
        audit: Audit,
        start: date | None,
        promised: Mapping[str, Sequence[Promise]],
        trained: TrainedRun | None,
    ) -> dict[str, tuple[Spent, ...]]:
        """Writes the units of a charge to files, and returns its windows.

        Args:
            audit: audit of the charged trace.
            start: day on which the run started.
            promised: worst cases of the run's reservation by window, which bound what it enforces.
            trained: training whose scenario the audit has; None for a run or log.
        """
        parts = list(self._parts_of(audit, _is_training(audit, trained)))
        named = PERIODS[self.entries[0]["period"]]
        of_rounds = [named(each) for each in _days_of_rounds(audit.trace, start)]
        names, keys = _units_of(audit.trace, self.unit)
        windows: dict[str, tuple[Spent, ...]] = {}
        for window in sorted(set(of_rounds)):
            is_inside = np.array([each == window for each in of_rounds])
            inside = _restricted(audit.patterns, is_inside[audit.patterns.rounds])
            if not inside.device_ids.size:
                continue
            if self.unit == "person":
                inside = joined_by_owner(inside)
            ids = pa.array(inside.device_ids)
            units = ids if names is None else names.take(ids)
            own_keys = units if keys is None else keys.take(ids)
            found = []
            for part in parts:
                amounts = part.amounts_of(inside)
                table = pa.record_batch({self.unit: units, _column_of(part.release): amounts})
                # Keys that are the names need no room.
                if not own_keys.equals(units):
                    table = table.append_column("key", own_keys)
                bounds = [e.amount for e in promised.get(window, ()) if e.release == part.release]
                bounds = [math.fsum(bounds)] * bool(bounds) + part.enforced
                of_part: Any = {"release": part.release, "enforced": min(bounds, default=None)}
                found.append(Spent(file=self._write(table), **of_part))
            windows[window] = tuple(found)
        return windows

    def _parts_of(self, audit: Audit, is_training: bool) -> Iterator["_Part"]:
        """Yields the model and the answers of an audited trace. Raises InputError."""
        used = audit.mechanisms[0] if audit.mechanisms else None
        named = f"trace {str(audit.path)!r}"
        if not audit.is_of_run:
            raise InputError(
                f"{named} is a run, which is charged with its own noise only; leave out the claim, "
                "mechanism and noise multiplier"
            )
        # A model without noise has no figure, whatever the answers beside it have.
        if (used is None or used.noise is None) and audit.no_guarantee != ONLY_ANSWERS:
            raise InputError(
                f"{named} has no known mechanism and noise, so what it spent is unknown; give its "
                "claim"
            )
        if audit.incompleteness:
            raise InputError(
                f"{named} cannot be charged: {audit.incompleteness} What devices spent in those "
                "rows is unknown; find out whose they are"
            )
        if self.unit == "person":
            if audit.answers is not None:
                raise InputError(
                    f"{named} has a question or a private vocabulary, and what a person with "
                    "several devices spends on it is not known; charge it to a budget of devices"
                )
            if used is None or used.person is None:
                raise InputError(
                    f"{named} does not say who owns its devices, but the budget is of persons; "
                    "import the log with owners, or set population.owners"
                )
        if used is not None and used.noise is not None:
            strategy, rho_of_one = used.strategy, rho_of(released(used.noise, 1.0))
            ensured = [each.rho for each in used.resting(self.unit) if each.rho is not None]
            yield _Part(
                "gaussian" if isinstance(used.noise, ServerNoise) else "zcdp",
                # rho is proportional to the squared sensitivity (Bun and Steinke 2016, Prop. 1.6).
                lambda inside: device_sensitivities(strategy, inside).values ** 2 * rho_of_one,
                ensured,
            )
        scenario = audit.scenario
        if scenario is None or scenario.analytics is None:
            return
        if is_training:
            # The run released the answers, so they are charged with it, once.
            own = _scenario_of_run(audit.trace)
            if not any(each.run == own for each in self.charges.values()):
                raise InputError(
                    f"{named} is of a run that released answers too, which the ledger does not "
                    "have; charge the run first"
                )
        else:
            most = [
                float(each.windows)
                for each in audit.answers or ()
                if each.basis == "enforced" and each.may_rest_on and each.windows is not None
            ]
            yield _Part(
                charged_plan(scenario).event.to_json(),
                # A device answers once in a window.
                lambda inside: inside.counts.astype(np.float64),
                most,
            )

    def _write(self, table: pa.RecordBatch) -> str:
        # Small tables are read in a third of the time without compression.
        codec = "zstd" if table.nbytes > 1 << 16 else None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(
            sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
        ) as writer:
            writer.write_batch(table)
        content = sink.getvalue().to_pybytes()
        digest = hashlib.sha256(content).hexdigest()
        replace_file(self.path / f"{digest}.arrow", content)
        return digest

    @contextmanager
    def _locked(self, is_new: bool = False) -> Iterator[Self]:
        """Within: yields the ledger as it is now, which no other process can change."""
        try:
            lock = Lock(self.path, LOCK_SECONDS)
            try:
                if is_new and os.path.lexists(self.path / CHAIN_FILE):
                    rule = "is a ledger already, whose budget cannot be changed"
                    raise InputError.of("ledger", str(self.path), rule, "name a new directory")
                yield self if is_new else type(self).open(self.path)
            finally:
                lock.release()
        except OSError as error:
            raise RunFailed(
                f"ledger {str(self.path)!r} cannot be written ({error.strerror or error}); it is "
                "as it was: make it writable and run again"
            ) from None

    def _with(self, lines: Sequence[Line]) -> Self:
        new = [each.model_dump(mode="json") for each in lines]
        return replace(
            self, entries=tuple(append_to_chain(self.path / CHAIN_FILE, self.entries, new))
        )


class _Part(NamedTuple):
    """A model or the answers to a question, as a ledger charges it."""

    release: Release
    amounts_of: Callable[[Patterns], Float64Array]
    """Function that returns the amount of each unit [P] from its rounds in a window."""
    enforced: list[float]
    """Bounds on the amount of any unit, by the rules of the run."""


def noise_of(scenario: Scenario, device: str, *, is_training: bool = False) -> tuple[str, ...]:
    """Returns the seed of a scenario's noise on each kind of device that draws it: noise with an
    equal text is equal.

    Args:
        scenario: scenario of one task.
        device: kind of device of the aggregator: "cpu", or "cuda" and perhaps its model.
        is_training: whether a model is trained on the trace of a run, which released the answers.
    """
    drawn = []
    asks = scenario.analytics is not None
    if is_training or not asks or scenario.training.enabled:
        # GPUs of two models may draw the same numbers, so only the kind counts.
        kinds = set() if scenario.privacy.encoding.adds_noise else {device.split()[0]}
        # Discrete noise and the noise of counts are drawn on a CPU.
        if not kinds or scenario.count_noise is not None:
            kinds.add("cpu")
        drawn = [f"on {each}" for each in sorted(kinds)]
    # Answers have draws of their own.
    drawn += ["of answers"] * (asks and not is_training)
    return tuple(f"{scenario.training_seed} {each}" for each in drawn)


def vocabularies_of(scenario: Scenario | None) -> tuple[Vocabulary, ...]:
    """Returns the private vocabulary of a scenario's data, if it has one."""
    cost = vocabulary_cost(scenario)
    if cost is None:
        return ()
    return (Vocabulary(run=cost.run, sha256=cost.vocabulary_sha256, event=cost.event),)


def _run_of(audit: Audit) -> str:
    """Returns the digest of the scenario of a run or training, or of a log's claim."""
    if audit.scenario is not None:
        # A training has its own scenario on the trace of a run.
        is_own = not _is_training(audit, None)
        return _scenario_of_run(audit.trace) if is_own else audit.scenario.digest
    claim = audit.claim
    text = claim.model_dump_json(include={"mechanism", "noise_multiplier"}) if claim else ""
    return hashlib.sha256(text.encode()).hexdigest()


def _is_training(audit: Audit, trained: TrainedRun | None) -> bool:
    """Whether a model was trained on the trace of a run, which is another release."""
    own = audit.trace.run.get("scenario_digest")
    return trained is not None or (audit.scenario is not None and audit.scenario.digest != own)


def _scenario_of_run(trace: Trace | ImportedTrace) -> str:
    """Returns the digest of the scenario of a run, of all its tasks."""
    return trace.run.get("task", trace.run)["scenario_digest"]


def _charge_of(audit: Audit, start: date | None, trained: TrainedRun | None, unit: str) -> Charged:
    """Returns the charge of a run, training or log, without its windows."""
    trace, run, noise, edges = audit.trace, _run_of(audit), (), [None, None]
    parts: list[Any] = [run, audit.digest, trace.run["rounds_digest"]]
    if isinstance(trace, ImportedTrace):
        # Ids that are stated to be distinct are summed by their names.
        parts += [trace.run["devices_digest"], audit.joined_ids]
        if (times := trace.round_times()) is not None:
            origin, start = trace.run["times"]["origin"], None
            edges = [origin + float(times[0].min()), origin + float(times[1].max())]
            # Without the time of its first or last round, a log may be at any time.
            is_known = bool(np.isfinite(edges).all())
            edges = [datetime.fromtimestamp(e, UTC) if is_known else None for e in edges]
    else:
        assert audit.scenario is not None
        model = trained or trace.trained
        kinds = {} if model is None else model.document
        device = str(kinds.get("aggregator_device", "cpu"))
        noise = noise_of(audit.scenario, device, is_training=_is_training(audit, trained))
        parts += [noise, kinds.get("aggregator_device"), kinds.get("trainer_device")]
    identity = hashlib.sha256(repr([*parts, start, *edges]).encode()).hexdigest()
    of_line: Any = {"run": run, "trace": _digest_of(audit), "identity": identity}
    of_line |= {
        "name": identity[:12],
        "first": edges[0],
        "last": edges[1],
        "start": start,
        "noise": noise,
        "columns": len(_columns_of(trace, unit)),
        "are_distinct": isinstance(trace, ImportedTrace) and trace.are_distinct(_ROLES[unit]),
        "vocabularies": vocabularies_of(audit.scenario),
    }
    return Charged(**of_line, windows={})


def _days_of_rounds(trace: Trace | ImportedTrace, start: date | None) -> list[date]:
    """Returns the day (UTC) on which each round was released."""
    origin = (
        0.0
        if start is None
        else datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp()
    )
    if isinstance(trace, Trace):
        seconds = trace.rounds["closed"][trace.rounds["state"] == 0]
    else:
        times = trace.round_times()
        seconds = np.zeros(trace.committed_rounds) if times is None else times[1]
        if times is not None:
            origin, start = trace.run["times"]["origin"], start or date.min
    if start is None or not np.isfinite(seconds).all() or origin < 0:
        raise InputError.of(
            "start", None, "must be given, since the trace has no dates", "such as 2026-10-01"
        )
    return [datetime.fromtimestamp(origin + each, UTC).date() for each in seconds.tolist()]


def _restricted(patterns: Patterns, is_inside: np.ndarray) -> Patterns:
    """Returns the participations [A] that are inside, with the devices that have any."""
    counts = np.add.reduceat(is_inside.astype(np.int64), patterns.starts)
    weights = None if patterns.weights is None else patterns.weights[is_inside]
    return Patterns(
        patterns.committed_rounds,
        patterns.device_ids[counts > 0],
        counts[counts > 0],
        patterns.rounds[is_inside],
        weights,
        None if patterns.owner_ids is None else patterns.owner_ids[counts > 0],
    )


def _digest_of(audit: Audit) -> str:
    """Returns the digest of a trace; of a log, the same however its ids are written and repeats are
    taken, and whether ids that share a key are one device."""
    if isinstance(audit.trace, Trace):
        return audit.digest
    ranks = _COMPUTE.rank(_units_of(audit.trace, "device")[1], tiebreaker="dense").to_numpy()
    found = audit.patterns
    devices = np.repeat(ranks[found.device_ids], found.counts).astype(np.uint64)
    rows = np.unique(devices << np.uint64(32) | found.rounds)
    return imported_digest(rows >> np.uint64(32), rows.astype(np.uint32))


def _units_of(trace: Trace | ImportedTrace, unit: str) -> tuple[pa.Array | None, pa.Array | None]:
    """Returns names and keys of the units of a log as text, by their ids; None for a simulated run,
    whose ids are numbers."""
    if isinstance(trace, Trace):
        return None, None
    role = _ROLES[unit]
    ids = trace.ids_of(role)
    # Another log may have integers and bytes as text, so they have the keys of their texts.
    if pa.types.is_binary(ids.type):
        names = pa.array([each.hex() for each in ids.to_pylist()], pa.string())
    else:
        names = pa.concat_arrays(ids.cast(pa.string()).chunks)
    return names, keys_of(names, len(_columns_of(trace, unit)) > 1)


def _columns_of(trace: Trace | ImportedTrace, unit: str) -> list[str]:
    """Returns the columns of a log that name a unit; one for a simulated run."""
    if isinstance(trace, Trace) or unit == "person":
        return [unit]
    return trace.device_columns


def _column_of(release: Release) -> str:
    """Returns the name of the column of amounts."""
    return "rho" if isinstance(release, str) else "answers"


def _is_enforced(parts: Sequence[Spent]) -> bool:
    return all(each.enforced is not None for each in parts)
