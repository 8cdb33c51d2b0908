"""A ledger of privacy spent over runs, by device and calendar window.

    LEDGER/
      ledger.jsonl       the budget, then a line per reservation, charge or cancellation: a chain
                         of digests (fedray/base/chain.py)
      SHA256.arrow       units and their rho, or their answers, in one window of one charge; named
                         by its content (fedray/audit/ledger_files.py)
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

import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from fedray.audit.audit import Audit
from fedray.audit.claims import Claim
from fedray.audit.ledger_charges import Chargeable, run_of
from fedray.audit.ledger_lines import (
    NAME,
    Budget,
    Cancelled,
    Charged,
    Line,
    Promise,
    Reserved,
    Vocabulary,
    read_lines,
)
from fedray.audit.ledger_windows import WindowSpent, spent_in
from fedray.base.chain import append_to_chain, read_chain
from fedray.base.document import IfAny, InJson
from fedray.base.errors import InputError, RunFailed
from fedray.base.periods import PERIODS
from fedray.base.result import Result
from fedray.base.rounding import counted, given, up
from fedray.base.storage import local_path
from fedray.trace.imported import PERIOD, ImportedTrace
from fedray.trace.partial import Lock
from fedray.trace.trained import TrainedRun

CHAIN_FILE = "ledger.jsonl"
WORDS_OF = {"models": "whoever gets the models", "operator": "the operator of the server"}
"""Observers of budgets in words."""
LOCK_SECONDS = 10.0
"""Longest wait for another process that writes the ledger."""


@dataclass(frozen=True)
class Ledger(Result):
    """An opened ledger, whose lines all have their digests; files are checked as they are read."""

    TABLES: ClassVar[str] = "fedray.report.audits:ledger_tables"
    SUBJECT: ClassVar[str] = "fedray.report.subjects:ledger_subject"

    path: Path
    """Directory of the ledger."""
    entries: tuple[dict[str, Any], ...]
    """Lines of the ledger in order: the budget, reservations, charges and cancellations."""

    @classmethod
    def create(
        cls,
        path: str | Path,
        epsilon: float,
        delta: float,
        period: str,
        unit: str = "device",
        observer: str = "models",
        ensure: Claim | None = None,
    ) -> Self:
        """Makes a ledger with a budget of each device, or of each person, and window, and with a
        claim that every run must ensure, if one is given.

        Args:
            path: directory of the ledger.
            epsilon: budget of a unit in a window.
            delta: delta of the budget.
            period: length of a window, a key of PERIODS.
            unit: device or person.
            observer: party against whom privacy is spent, models or operator; see `Budget`.
            ensure: claim that every run must ensure, or None.

        Raises:
            InputError: the ledger exists, or a value is out of range.
        """
        given: Any = {"epsilon": epsilon, "delta": delta, "period": period, "unit": unit}
        ensured = None if ensure is None else ensure.to_document()
        budget = Budget(format=3, **given, **{"observer": observer, "ensured": ensured})
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
    def budget(self) -> Budget:
        """Budget of every unit in every window."""
        first = self.lines[0]
        assert isinstance(first, Budget), "another first line is refused"
        return first

    @property
    def ensured(self) -> IfAny[str | None]:
        """Digest of the claim that every run must ensure; absent without one."""
        own = self.budget.ensured
        return None if own is None else str(own["digest"])

    @property
    def unit(self) -> InJson[str]:
        """Unit of the budget: device or person."""
        return self.budget.unit

    @property
    def observer(self) -> InJson[str]:
        """Party against whom the budget is spent: models or operator."""
        return self.budget.observer

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
        reserved = [e for e in (*self.reservations.values(), *more) if window in e.windows]
        return spent_in(window, self.budget, releases, reserved, self.path)

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
            trusted = "Whoever adds the noise is trusted"
            if self.observer == "operator":
                trusted = "What each run assumes of its store, enclave or devices holds"
            lines.append(
                f"**{each.window}.** Over {releases}, every {self.unit} is protected at (epsilon, "
                f"delta) = ({up(each.epsilon)}, {given(self.budget.delta)}){rho}, {basis}. "
                f"That is against {WORDS_OF[self.observer]}. Adjacency: one {self.unit}'s "
                f"contributions are replaced by zeros. {trusted}, and every "
                "answer, and every model after every round, is released. When devices took part is "
                "not protected."
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
        claim: Claim | None = None,
    ) -> Self:
        """Reserves the worst case of a run that is about to start.

        Args:
            run: digest of the scenario.
            promises: most that a unit may spend on each model and each question of the run.
            start: day on which the run starts (UTC).
            days: longest duration of the run, in days.
            noise: noise of all tasks, from `noise_of`.
            vocabularies: private vocabularies of all tasks.
            claim: claim that the run ensures.

        Raises:
            InputError: the run does not ensure the ledger's claim, might exceed the budget of a
                window, or shares its noise with another release; the ledger is as it was.
        """
        with self._locked() as now:
            _check_ensured(now, claim and claim.digest)
            # The same run again releases the same models.
            lines = (now.charges | now.reservations).items()
            same = [n for n, each in lines if (each.run, each.start) == (run, start)]
            now._check_noise(noise, same)
            named = PERIODS[now.budget.period]
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
                        f"{now.budget.epsilon:g}; nothing was started: add noise, or run in "
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
            InputError: a run did not have to ensure the ledger's claim, a trace has no mechanism
                and noise, or no owners for a budget of persons,
                its days are unknown, it shares noise with another release, or a log may be a
                charged release and has no name.
        """
        with self._locked() as now:
            for audit in audits:
                document = audit.trace.run if trained is None else trained.document
                is_log = isinstance(audit.trace, ImportedTrace)
                _check_ensured(now, document.get("ensured", {}).get("digest"), is_log)
            # A training has noise of its own, so it leaves the reservation to its run.
            line = None if trained else now.reservation_of(run_of(audits[0]), start)
            promised = {} if line is None else now.reservations[line].windows
            charges = now.charges.values()
            starts = {e.start for e in charges if e.noise and e.trace == audits[0].digest}
            start = start or (starts.pop() if len(starts) == 1 else None)
            start = now.reservations[line].start if line else start
            runs = {each.run for each in charges}
            lines: list[Line] = []
            for audit in audits:
                found = Chargeable(audit, start, trained, now.unit, now.observer)
                new = found.line()
                now._check_columns(found, new)
                name = now._name_of(new, release)
                if name:
                    windows = found.windows(now.path, now.budget.period, promised, runs)
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

    def _check_columns(self, found: Chargeable, new: Charged) -> None:
        """Raises InputError if the units of a log are not those of the ledger."""
        named = f"trace {str(found.audit.path)!r}"
        if any(each.startswith(PERIOD) for each in found.columns):
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


def _check_ensured(ledger: Ledger, digest: str | None, is_log: bool = False) -> None:
    """Raises InputError unless a run with a claim of this digest is under the ledger's claim, if it
    has one."""
    own = ledger.ensured
    if own is None or own == digest:
        return
    rule = "has no claim that it ensures" if digest is None else "ensures another claim"
    broken = f"this one {rule}; run it with `ensure` and that claim"
    if is_log:
        broken = "a log cannot ensure a claim; charge it to another ledger"
    raise InputError(
        f"ledger {str(ledger.path)!r}: every run must ensure the claim {own[:12]}, and {broken}"
    )
