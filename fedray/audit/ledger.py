"""A ledger of privacy spent over runs, by device and calendar window.

    LEDGER/
      ledger.jsonl       the budget, then a line per reservation, charge or cancellation: a chain
                         of digests (fedray/base/chain.py)
      SHA256.parquet     units and their rho in one window of one charge; named by its content
      lock               held while the ledger is written

The unit of privacy is a device, or a person with all devices, in a window: all that it contributed
to rounds that were released in that window, of any run. Its rho in a run is that of its rounds in
the window, and rho adds up over runs, also if runs are chosen by earlier results (Bun and Steinke
2016, Lemma 1.7).

A run is reserved at its worst case before it starts and charged at its end, so that neither a crash
nor a second run at the same time can spend more than the budget. Files of devices are written and
synced before the line that names them: after a crash a charge is in the ledger as a whole or not at
all, and charging again changes nothing.
"""

import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.audit.audit import Audit
from fedray.audit.distribution import device_sensitivities
from fedray.audit.noise import Noise, ServerNoise, released
from fedray.audit.participation import Patterns
from fedray.audit.persons import joined_by_owner
from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.atomic import replace_file
from fedray.base.chain import append_to_chain, read_chain
from fedray.base.document import InJson
from fedray.base.errors import InputError, RunFailed
from fedray.base.result import Result
from fedray.base.rounding import counted, given, up
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.limits import check_delta
from fedray.mechanisms.accounting.zcdp import rho_of, zcdp_epsilon
from fedray.mechanisms.strategy import Strategy
from fedray.trace.imported import ImportedTrace
from fedray.trace.partial import Lock
from fedray.trace.reader import Trace

CHAIN_FILE = "ledger.jsonl"
PERIODS: Mapping[str, Callable[[date], str]] = {
    "day": date.isoformat,
    "week": lambda day: "{}-W{:02}".format(*day.isocalendar()),
    "month": lambda day: f"{day:%Y-%m}",
    "quarter": lambda day: f"{day.year}-Q{(day.month + 2) // 3}",
    "year": lambda day: f"{day.year}",
}
"""Name of the window of a day (UTC), by the period of the budget."""
ROUNDING = 1e-9
"""Relative error of sums of rho that does not count as exceeding the budget."""
UNITS = ("device", "person")


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
        if not 0.0 < epsilon <= 1e6:
            raise InputError.of("epsilon", epsilon, "must be above 0 and at most 1e6")
        check_delta(delta)
        if period not in PERIODS:
            raise InputError.of("period", period, f"must be one of {', '.join(PERIODS)}")
        if unit not in UNITS:
            raise InputError.of("unit", unit, f"must be one of {', '.join(UNITS)}")
        budget = {"kind": "budget", "epsilon": epsilon, "delta": delta, "period": period}
        budget["unit"] = unit
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            rule = f"cannot be made ({error.strerror or error})"
            raise InputError.of("ledger", str(path), rule, "name another directory") from None
        with cls(Path(path), ())._locked(is_new=True) as new:
            return new._with([budget])

    @classmethod
    def open(cls, path: str | Path, head: str | None = None) -> Self:
        """Opens a ledger and checks every digest.

        Args:
            path: directory of the ledger.
            head: head of the ledger at an earlier time, which it must continue.

        Raises:
            InputError: it is not a ledger, a line or file was changed, or `head` is not in it.
        """
        try:
            entries = read_chain(Path(path) / CHAIN_FILE)
        except OSError as error:
            rule = f"is not a ledger ({error.strerror or error})"
            remedy = "make one by `fedray budget`, with an epsilon, a delta and a period"
            raise InputError.of("ledger", str(path), rule, remedy) from None
        if head is not None and head not in {each["digest"] for each in entries}:
            rule = "is no line of this ledger, so lines were removed or all written again"
            raise InputError.of("head", head, rule, "restore the ledger from a copy")
        if not entries:
            raise InputError.of("ledger", str(path), "is empty", "restore it from a copy")
        for number, entry in enumerate(entries, 1):
            for charge in entry.get("windows", {}).values():
                _check_file(Path(path), charge, number)
        return cls(Path(path), tuple(entries))

    @property
    def head(self) -> InJson[str]:
        """Digest of the last line. Only a copy kept elsewhere shows that lines were removed."""
        return self.entries[-1]["digest"]

    @property
    def unit(self) -> InJson[str]:
        """Unit of the budget: device or person."""
        return self.entries[0].get("unit", "device")

    @property
    def reservations(self) -> dict[int, dict[str, Any]]:
        """Reservations that were neither charged nor cancelled, by the number of their line."""
        closed = {each.get("closes") for each in self.entries}
        lines = enumerate(self.entries, 1)
        return {n: each for n, each in lines if each["kind"] == "reserved" and n not in closed}

    @property
    def windows(self) -> InJson[tuple[WindowSpent, ...]]:
        """Every window in which anything was charged or is reserved, in order."""
        live = [each for each in self.entries if each["kind"] == "charged"]
        named = {name for each in (*live, *self.reservations.values()) for name in each["windows"]}
        return tuple(self.spent(each) for each in sorted(named))

    def spent(self, window: str, more: Mapping[str, Any] | None = None) -> WindowSpent:
        """Returns the privacy spent in a window, with `more` of a further run reserved."""
        charges = self._charges(window)
        open_ones = [each["windows"] for each in self.reservations.values()]
        open_ones += [{window: more}] if more is not None else []
        reserved = math.fsum(each[window]["rho"] for each in open_ones if window in each)
        recorded = self._sums(charges)
        # Old lines have no such key.
        by_rules = [each.get("enforced") for each in charges]
        others = [each for each in charges if each.get("enforced") is None]
        enforced = math.fsum(each for each in by_rules if each is not None)
        largest = float(recorded.max(initial=0.0))
        # Usually all runs enforce their rules, or none does; files are then read once.
        rest = recorded if len(others) == len(charges) else self._sums(others)
        spent = max(largest, enforced + float(rest.max(initial=0.0)))
        # A unit has one Gaussian release of a rho; other noise has only the bound of zCDP.
        here = [each[window] for each in open_ones if window in each]
        is_gaussian = all(each.get("is_gaussian", True) for each in (*charges, *here))
        event = Gaussian(noise_multiplier=1.0, sensitivity=math.sqrt(2.0 * (spent + reserved)))
        budget = self.entries[0]
        epsilon = (gdp_epsilon if is_gaussian else zcdp_epsilon)(event, budget["delta"])
        is_within = epsilon <= budget["epsilon"] * (1.0 + ROUNDING)
        return WindowSpent(
            window, recorded.size, largest, spent, reserved, epsilon, is_within, not others
        )

    def _charges(self, window: str) -> list[dict[str, Any]]:
        """Returns the charges of a window."""
        lines = (each["windows"] for each in self.entries if each["kind"] == "charged")
        return [each[window] for each in lines if window in each]

    def _sums(self, charges: Sequence[Mapping[str, Any]]) -> Float64Array:
        """Returns the rho of every unit of charges of one window, over all of them."""
        tables = [pq.read_table(self.path / f"{each['file']}.parquet") for each in charges]
        if not tables:
            return np.zeros(0)
        # One thread, so that sums of floats do not depend on the machine.
        groups = pa.concat_tables(tables).group_by(self.unit, use_threads=False)
        return groups.aggregate([("rho", "sum")])["rho_sum"].to_numpy()

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
            runs = counted(len(self._charges(each.window)), "run")
            basis = (
                "by the rules of every run, whoever took part"
                if each.may_rest_on
                else "as recorded, so only if no participation depended on released models"
            )
            lines.append(
                f"**{each.window}.** Over {runs}, every {self.unit} is protected at (epsilon, "
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
        self, run: str, rho: float, start: date, days: float, is_gaussian: bool = True
    ) -> Self:
        """Reserves the worst case of a run that is about to start.

        Args:
            run: digest of the scenario.
            rho: largest rho that a unit may spend in the run.
            start: day on which the run starts (UTC).
            days: longest duration of the run, in days.
            is_gaussian: whether the server adds the noise; if not, epsilon is the bound of zCDP.

        Raises:
            InputError: the run might exceed the budget of a window; the ledger is as it was.
        """
        with self._locked() as now:
            named = PERIODS[now.entries[0]["period"]]
            try:
                days_of_run = [start + timedelta(each) for each in range(math.floor(days) + 2)]
            except OverflowError:
                rule = f"is too late for a run of {days:g} days"
                raise InputError.of("start", start.isoformat(), rule) from None
            promise = {"rho": rho, "is_gaussian": is_gaussian}
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
            line = {"kind": "reserved", "run": run, "start": start.isoformat(), "windows": windows}
            return now._with([line])

    def charge(self, audits: Sequence[Audit], start: date | None = None) -> Self:
        """Charges the privacy that every device, or person, spent in a run, without traces that are
        in the ledger.

        Args:
            audits: audit of each trace of the run, with its mechanism and noise.
            start: day on which the run started (UTC); None for that of its reservation, or for the
                times of a log.

        Raises:
            InputError: a trace has no mechanism and noise, or no owners for a budget of persons,
                or its days are unknown.
        """
        with self._locked() as now:
            run = _run_of(audits[0])
            reserved = [n for n, each in now.reservations.items() if each["run"] == run][:1]
            known = {(each.get("run"), each.get("trace")) for each in now.entries}
            if start is None and reserved:
                start = date.fromisoformat(now.entries[reserved[0] - 1]["start"])
            new = [each for each in audits if (_run_of(each), each.digest) not in known]
            promised = now.entries[reserved[0] - 1]["windows"] if reserved else {}
            lines = [now._charged(each, start, promised) for each in new]
            # A run that is charged already spent nothing more, so only its reservation is closed.
            if reserved and not lines:
                lines.append({"kind": "cancelled"})
            if reserved:
                lines[0]["closes"] = reserved[0]
            return now._with(lines) if lines else now

    def cancel(self, number: int) -> Self:
        """Cancels the reservation on line `number`, of a run that released nothing."""
        with self._locked() as now:
            if number not in now.reservations:
                raise InputError.of("cancel", number, "is not the line of an open reservation")
            return now._with([{"kind": "cancelled", "closes": number}])

    def _charged(
        self, audit: Audit, start: date | None, promised: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Writes the units of a charge to files, and returns its line.

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
        if self.unit == "person" and used.person is None:
            raise InputError(
                f"trace {str(audit.path)!r} does not say who owns its devices, but the budget is "
                "of persons; import the log with an owner column, or set population.owners"
            )
        ensured = [each.rho for each in used.resting(self.unit)]
        ensured += [each["rho"] for each in promised.values()]
        enforced = min((each for each in ensured if each is not None), default=None)
        named = PERIODS[self.entries[0]["period"]]
        of_rounds = [named(each) for each in _days_of_rounds(audit.trace, start)]
        windows = {}
        for window in sorted(set(of_rounds)):
            is_inside = np.array([each == window for each in of_rounds])
            inside = _restricted(audit.patterns, is_inside[audit.patterns.rounds])
            if inside.device_ids.size:
                if self.unit == "person":
                    inside = joined_by_owner(inside)
                rho = _rho_of_units(used.strategy, inside, used.noise)
                names = _names_of(audit.trace, inside.device_ids, self.unit)
                windows[window] = {
                    "file": self._write(pa.table({self.unit: names, "rho": rho})),
                    "is_gaussian": isinstance(used.noise, ServerNoise),
                    "enforced": enforced,
                }
        run = _run_of(audit)
        return {"kind": "charged", "run": run, "trace": audit.digest, "windows": windows}

    def _write(self, table: pa.Table) -> str:
        files = [
            each["file"]
            for line in self.entries
            for each in line.get("windows", {}).values()
            if "file" in each
        ]
        if files:
            ours = pq.read_schema(self.path / f"{files[0]}.parquet").field(self.unit).type
            if ours != table.schema.field(self.unit).type:
                raise InputError(
                    f"ledger {str(self.path)!r} has {self.unit}s of type {ours}, this trace of "
                    f"{table.schema.field(self.unit).type}; keep a ledger for each population"
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
            lock = Lock(self.path)
            try:
                if is_new and (self.path / CHAIN_FILE).exists():
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

    def _with(self, lines: Iterable[Mapping[str, Any]]) -> Self:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        new = [{**each, "written": time} for each in lines]
        return replace(
            self, entries=tuple(append_to_chain(self.path / CHAIN_FILE, self.entries, new))
        )


def _check_file(folder: Path, charge: Mapping[str, Any], number: int) -> None:
    """Raises InputError unless the file of a charge, on line `number`, has its digest."""
    if "file" not in charge:
        return
    file = folder / f"{charge['file']}.parquet"
    try:
        is_same = hashlib.sha256(file.read_bytes()).hexdigest() == charge["file"]
    except OSError:
        is_same = False
    if not is_same:
        raise InputError(
            f"{str(file)!r}, which line {number} of the ledger names, is missing or was changed; "
            "restore it from a copy"
        )


def _run_of(audit: Audit) -> str:
    """Returns a digest that distinguishes releases on one trace: of scenario, or mechanism."""
    if isinstance(audit.trace, Trace):
        document = audit.trace.run
        return document.get("task", document)["scenario_digest"]
    claim = audit.claim
    text = claim.model_dump_json(include={"mechanism", "noise_multiplier"}) if claim else ""
    return hashlib.sha256(text.encode()).hexdigest()


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


def _rho_of_units(strategy: Strategy, patterns: Patterns, noise: Noise) -> np.ndarray:
    # rho is proportional to the squared sensitivity (Bun and Steinke 2016, Proposition 1.6).
    return device_sensitivities(strategy, patterns).values ** 2 * rho_of(released(noise, 1.0))


def _names_of(trace: Trace | ImportedTrace, ids: UInt64Array, unit: str) -> pa.Array:
    if isinstance(trace, Trace):
        return pa.array(ids)
    if unit == "person":
        return pa.array(trace.owner_names(ids.tolist()))
    return trace.device_names.take(pa.array(ids))
