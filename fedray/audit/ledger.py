"""A ledger of privacy spent over runs, by device and calendar window.

    LEDGER/
      ledger.jsonl       the budget, then a line per reservation, charge or cancellation: a chain
                         of digests (fedray/base/chain.py)
      SHA256.parquet     units and their rho in one window of one charge; named by its content
      lock               held while the ledger is written

The unit of privacy is a device, or a person with all devices, in a window: all that it contributed
to rounds that were released in that window, of any run. Its rho in a run is that of its rounds in
the window, and rho adds up over runs, also if runs are chosen by earlier results (Bun and Steinke
2016, Lemma 1.7), but only if their noise is independent: runs and trainings that share their noise
are refused, because the difference of their models would have none.

A log that may be a charged release is charged only with a name: a new one makes it another release,
that of a charge makes it a version of that release, of which every unit spent the largest rho. So a
correction never lowers what is spent.

A run is reserved at its worst case before it starts and charged at its end, so that neither a crash
nor a second run at the same time can spend more than the budget. Files of devices are written and
synced before the line that names them: after a crash a charge is in the ledger as a whole or not at
all, and charging again changes nothing.
"""

import hashlib
import io
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.audit.audit import Audit
from fedray.audit.distribution import device_sensitivities
from fedray.audit.ledger_lines import (
    MOST_RHO,
    NAME,
    Budget,
    Cancelled,
    Charged,
    Line,
    Promise,
    Reserved,
    Spent,
    read_lines,
)
from fedray.audit.noise import ServerNoise, released
from fedray.audit.participation import Patterns
from fedray.audit.persons import joined_by_owner
from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.atomic import replace_file
from fedray.base.chain import append_to_chain, read_chain
from fedray.base.document import InJson
from fedray.base.errors import InputError, RunFailed
from fedray.base.periods import PERIODS
from fedray.base.regular_file import open_regular_file
from fedray.base.result import Result
from fedray.base.rounding import counted, given, up
from fedray.base.storage import local_path
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of, zcdp_epsilon
from fedray.scenario import Scenario
from fedray.trace.imported import ImportedTrace
from fedray.trace.partial import Lock
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

CHAIN_FILE = "ledger.jsonl"
ROUNDING = 1e-9
"""Relative error of sums of rho that does not count as exceeding the budget."""
LOCK_SECONDS = 10.0
"""Longest wait for another process that writes the ledger."""


class WindowSpent(NamedTuple):
    """Privacy that devices, or persons, spent in one window."""

    window: str
    """Name of the window, such as 2026-Q4."""
    units: int
    """Number of devices, or persons, that were charged."""
    recorded: float
    """Largest rho of a unit over all charges, as recorded."""
    spent: float
    """Largest rho of a unit, at most: for each run what its rules enforce, or what is recorded if
    they enforce nothing."""
    reserved: float
    """rho reserved for runs that have not been charged, for every unit."""
    epsilon: float
    """Epsilon at delta of spent and reserved rho together."""
    is_within: bool
    """Whether that is within the budget."""
    may_rest_on: bool
    """Whether a guarantee may rest on `spent`, because every run enforced it."""


@dataclass(frozen=True)
class Ledger(Result):
    """An opened ledger, all of whose lines and files have their digests."""

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
        budget = Budget(format=2, **given)
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
        """Opens a ledger and checks every digest.

        Args:
            path: directory of the ledger.
            head: head of the ledger at an earlier time, which it must continue.

        Raises:
            InputError: it is not a ledger, a line or file was changed or has wrong values, or
                `head` is not in it.
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
        spent = [each for line in found.charges.values() for each in line.windows.values()]
        if len({found._table(each).schema for each in spent}) > 1:
            raise InputError.of("ledger", str(path), "has units of several types")
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

    @property
    def reservations(self) -> dict[int, Reserved]:
        """Reservations that were neither charged nor cancelled, by the number of their line."""
        closed = {each.closes for each in self.lines if isinstance(each, Charged | Cancelled)}
        lines = enumerate(self.lines, 1)
        return {n: each for n, each in lines if isinstance(each, Reserved) and n not in closed}

    @property
    def charges(self) -> dict[int, Charged]:
        """Charges, by the number of their line."""
        return {n: each for n, each in enumerate(self.lines, 1) if isinstance(each, Charged)}

    @property
    def windows(self) -> InJson[tuple[WindowSpent, ...]]:
        """Every window in which anything was charged or is reserved, in order."""
        lines = (*self.charges.values(), *self.reservations.values())
        return tuple(
            self.spent(each) for each in sorted({w for each in lines for w in each.windows})
        )

    def spent(self, window: str, more: Promise | None = None) -> WindowSpent:
        """Returns the privacy spent in a window, with `more` of a further run reserved."""
        releases = self._releases(window)
        open_ones = [
            line.windows[window] for line in self.reservations.values() if window in line.windows
        ]
        open_ones += [] if more is None else [more]
        reserved = math.fsum(each.rho for each in open_ones)
        recorded = self._sums(releases)
        by_rules = [[each.enforced for each in versions] for versions in releases]
        others = [each for each, rules in zip(releases, by_rules, strict=True) if None in rules]
        enforced = math.fsum(max(r or 0.0 for r in each) for each in by_rules if None not in each)
        # Rules bound every unit alike, so their figures add up whoever took part. Runs without
        # rules have only recorded figures, which are added unit by unit.
        largest = float(recorded.max(initial=0.0))
        # Usually all runs enforce their rules, or none does; files are then read once.
        rest = recorded if len(others) == len(releases) else self._sums(others)
        spent = max(largest, enforced + float(rest.max(initial=0.0)))
        # Gaussian releases of rho_1, rho_2, .. are together one with mu^2 = 2 (rho_1 + rho_2 + ..)
        # (Dong, Roth and Su 2022, Corollary 3.3), so epsilon is exact for their sum. Other noise
        # has only the bound that zCDP implies (`zcdp_epsilon`), which is larger.
        charged = [each for versions in releases for each in versions]
        is_gaussian = all(each.is_gaussian for each in (*charged, *open_ones))
        event = Gaussian(noise_multiplier=1.0, sensitivity=math.sqrt(2.0 * (spent + reserved)))
        budget = self.entries[0]
        epsilon = (gdp_epsilon if is_gaussian else zcdp_epsilon)(event, budget["delta"])
        is_within = epsilon <= budget["epsilon"] * (1.0 + ROUNDING)
        return WindowSpent(
            window, recorded.size, largest, spent, reserved, epsilon, is_within, not others
        )

    def _releases(self, window: str) -> list[list[Spent]]:
        """Returns the releases that were charged in a window, each as a list of its versions."""
        found: dict[str, list[Spent]] = {}
        for each in self.charges.values():
            if window in each.windows:
                found.setdefault(each.name, []).append(each.windows[window])
        return list(found.values())

    def _sums(self, releases: Sequence[Sequence[Spent]]) -> Float64Array:
        """Returns the rho of every unit in one window, over releases: of each the largest of its
        versions."""
        tables = [
            table.append_column("release", pa.repeat(place, table.num_rows))
            for place, versions in enumerate(releases)
            for table in map(self._table, versions)
        ]
        if not tables:
            return np.zeros(0)
        # One thread, so that sums of floats do not depend on the machine.
        versions = pa.concat_tables(tables).group_by(["release", self.unit], use_threads=False)
        largest = versions.aggregate([("rho", "max")]).group_by(self.unit, use_threads=False)
        return largest.aggregate([("rho_max", "sum")])["rho_max_sum"].to_numpy()

    def _table(self, spent: Spent) -> pa.Table:
        """Returns the units and rho of a charge. Raises InputError unless its file has its digest,
        and the columns and values of a charge."""
        file = self.path / f"{spent.file}.parquet"
        try:
            with open_regular_file(file) as stream:
                content = stream.read()
            table = pq.read_table(pa.BufferReader(content))
            units, rho = table[self.unit], table["rho"].to_numpy()
            is_nested = pa.types.is_nested(units.type) or table.num_columns != 2
            is_valid = not (is_nested or units.null_count) and rho.dtype == np.float64
            # A missing number is NaN here, which no comparison accepts.
            is_valid &= hashlib.sha256(content).hexdigest() == spent.file
            is_valid &= bool(((rho >= 0.0) & (rho <= MOST_RHO)).all())
        except (pa.ArrowException, OSError, LookupError, TypeError):
            table, is_valid = None, False
        if not is_valid:
            raise InputError(
                f"{str(file)!r}, which the ledger names, is missing or was changed; restore it "
                "from a copy"
            )
        return table

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
            releases = counted(len(self._releases(each.window)), "release")
            basis = (
                "by the rules of every run, whoever took part"
                if each.may_rest_on
                else "as recorded, so only if no participation depended on released models"
            )
            lines.append(
                f"**{each.window}.** Over {releases}, every {self.unit} is protected at (epsilon, "
                f"delta) = ({up(each.epsilon)}, {given(self.entries[0]['delta'])}), rho "
                f"{up(each.spent, 6)} (zCDP), {basis}. Adjacency: one {self.unit}'s updates are "
                "replaced by zeros. The aggregators that add the noise are trusted, and every "
                "model after every round is released. When devices took part is not protected."
            )
        if self.unit == "person":
            lines.append("A person has at most as many devices as each run's scenario or log says.")
        lines.append(f"Ledger {self.head}; tuning and releases outside it are not accounted for.")
        return "\n\n".join(lines) + "\n"

    def reserve(
        self,
        run: str,
        rho: float,
        start: date,
        days: float,
        noise: Collection[str],
        is_gaussian: bool = True,
    ) -> Self:
        """Reserves the worst case of a run that is about to start.

        Args:
            run: digest of the scenario.
            rho: largest rho that a unit may spend in the run.
            start: day on which the run starts (UTC).
            days: longest duration of the run, in days.
            noise: noise of all tasks, from `noise_of`.
            is_gaussian: whether the server adds the noise; if not, epsilon is the bound of zCDP.

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
            promise = Promise(rho=rho, is_gaussian=is_gaussian)
            windows = {named(each): promise for each in days_of_run}
            for window in windows:
                found = now.spent(window, promise)
                if not found.is_within:
                    raise InputError(
                        f"ledger {str(self.path)!r}: the run may spend rho {up(rho, 6)} in "
                        f"{window}, where {up(found.spent, 6)} is spent and "
                        f"{up(found.reserved - rho, 6)} reserved: together epsilon "
                        f"{up(found.epsilon)}, above the budget of "
                        f"{now.entries[0]['epsilon']:g}; nothing was started: add noise, or run in "
                        "another window"
                    )
            return now._with([Reserved(run=run, start=start, noise=tuple(noise), windows=windows)])

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
                new = _charge_of(audit, start, trained)
                name = now._name_of(new, release)
                if name:
                    windows = now._windows_of(audit, start, promised)
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
        if given and not re.search(NAME, given):
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
        self, audit: Audit, start: date | None, promised: Mapping[str, Promise]
    ) -> dict[str, Spent]:
        """Writes the units of a charge to files, and returns its windows.

        Args:
            audit: audit of the charged trace.
            start: day on which the run started.
            promised: worst cases of the run's reservation by window, which bound what it enforces.
        """
        used = audit.mechanisms[0] if audit.mechanisms else None
        if audit.answers is not None:
            raise InputError(
                f"trace {str(audit.path)!r} has a question or a private vocabulary, and a ledger "
                "counts updates of models only; leave the ledger out, and see its audit"
            )
        if not audit.is_of_run:
            raise InputError(
                f"trace {str(audit.path)!r} is a run, which is charged with its own noise only; "
                "leave out the claim, mechanism and noise multiplier"
            )
        if used is None or used.noise is None:
            raise InputError(
                f"trace {str(audit.path)!r} has no known mechanism and noise, so what it spent is "
                "unknown; give its claim"
            )
        if audit.incompleteness:
            raise InputError(
                f"trace {str(audit.path)!r} cannot be charged: {audit.incompleteness} What devices "
                "spent in those rows is unknown; find out whose they are"
            )
        if self.unit == "person" and used.person is None:
            raise InputError(
                f"trace {str(audit.path)!r} does not say who owns its devices, but the budget is "
                "of persons; import the log with owners, or set population.owners"
            )
        ensured = [each.rho for each in used.resting(self.unit)]
        ensured += [each.rho for each in promised.values()]
        enforced = min((each for each in ensured if each is not None), default=None)
        named = PERIODS[self.entries[0]["period"]]
        of_rounds = [named(each) for each in _days_of_rounds(audit.trace, start)]
        windows, rho_of_one = {}, rho_of(released(used.noise, 1.0))
        for window in sorted(set(of_rounds)):
            is_inside = np.array([each == window for each in of_rounds])
            inside = _restricted(audit.patterns, is_inside[audit.patterns.rounds])
            if inside.device_ids.size:
                if self.unit == "person":
                    inside = joined_by_owner(inside)
                # rho is proportional to the squared sensitivity (Bun and Steinke 2016, Prop. 1.6).
                rho = device_sensitivities(used.strategy, inside).values ** 2 * rho_of_one
                names = _names_of(audit.trace, inside.device_ids, self.unit)
                windows[window] = Spent(
                    file=self._write(pa.table({self.unit: names, "rho": rho})),
                    is_gaussian=isinstance(used.noise, ServerNoise),
                    enforced=enforced,
                )
        return windows

    def _write(self, table: pa.Table) -> str:
        files = [each for line in self.charges.values() for each in line.windows.values()]
        ours = self._table(files[0]).schema[0].type if files else table.schema[0].type
        theirs = table.schema[0].type
        if ours != theirs:
            raise InputError(
                f"ledger {str(self.path)!r} has {self.unit}s of type {ours}, this trace of "
                f"{theirs}; keep a ledger for each population"
            )
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        content = buffer.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        replace_file(self.path / f"{digest}.parquet", content)
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


def noise_of(scenario: Scenario, device: str) -> tuple[str, ...]:
    """Returns the seed of a scenario's noise on each kind of device that draws it: noise with an
    equal text is equal.

    Args:
        scenario: scenario of one task.
        device: kind of device of the aggregator: "cpu", or "cuda" and perhaps its model.
    """
    # GPUs of two models may draw the same numbers, so only the kind counts.
    kinds = set() if scenario.privacy.encoding.adds_noise else {device.split()[0]}
    # Discrete noise and the noise of counts are drawn on a CPU.
    if not kinds or scenario.count_noise is not None:
        kinds.add("cpu")
    return tuple(f"{scenario.training_seed} on {each}" for each in sorted(kinds))


def _run_of(audit: Audit) -> str:
    """Returns the digest of the scenario of a run or training, or of a log's claim."""
    if isinstance(audit.trace, Trace):
        assert audit.scenario is not None
        document = audit.trace.run
        # A training has its own scenario on the trace of a run.
        if audit.scenario.digest != document["scenario_digest"]:
            return audit.scenario.digest
        return document.get("task", document)["scenario_digest"]
    claim = audit.claim
    text = claim.model_dump_json(include={"mechanism", "noise_multiplier"}) if claim else ""
    return hashlib.sha256(text.encode()).hexdigest()


def _charge_of(audit: Audit, start: date | None, trained: TrainedRun | None) -> Charged:
    """Returns the charge of a run, training or log, without its windows."""
    trace, run, noise, edges = audit.trace, _run_of(audit), (), [None, None]
    parts: list[Any] = [run, audit.digest, trace.run["rounds_digest"]]
    if isinstance(trace, ImportedTrace):
        parts.append(trace.run["devices_digest"])
        # Ids that are stated to be distinct have figures of their own.
        if "joined_ids" in trace.run:
            parts.append(trace.run["joined_ids"])
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
        noise = noise_of(audit.scenario, str(kinds.get("aggregator_device", "cpu")))
        parts += [noise, kinds.get("aggregator_device"), kinds.get("trainer_device")]
    identity = hashlib.sha256(repr([*parts, start, *edges]).encode()).hexdigest()
    of_line: Any = {"run": run, "trace": trace.digest, "identity": identity}
    of_line |= {
        "name": identity[:12],
        "first": edges[0],
        "last": edges[1],
        "start": start,
        "noise": noise,
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


def _names_of(trace: Trace | ImportedTrace, ids: UInt64Array, unit: str) -> pa.Array:
    if isinstance(trace, Trace):
        return pa.array(ids)
    if unit == "person":
        return pa.array(trace.owner_names(ids.tolist()))
    return trace.device_names.take(pa.array(ids))
