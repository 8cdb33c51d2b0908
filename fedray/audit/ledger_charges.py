"""An audited run, training or log, as a ledger charges it: its line, and the units with their
amounts in each window."""

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.audit.audit import Audit
from fedray.audit.distribution import device_sensitivities
from fedray.audit.ledger_files import Units, write_units
from fedray.audit.ledger_lines import Charged, Promise, Release, Spent, Vocabulary
from fedray.audit.noise import ServerNoise, changed_rounds, rhos_of
from fedray.audit.observers import against_operator, noise_against_operator, trust_of_model
from fedray.audit.participation import Patterns
from fedray.audit.persons import joined_by_owner, joint_answers
from fedray.audit.questions import (
    ONLY_ANSWERS,
    TOO_MANY,
    charged_plan,
    vocabulary_cost,
    vocabulary_event,
)
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.periods import PERIODS
from fedray.mechanisms.accounting.events import ApproximateDP
from fedray.mechanisms.accounting.group import GROUP_THEOREM, WindowLoss
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.scenario import Scenario
from fedray.scenario.trust import AnyTrust
from fedray.trace.ids import ROLES, keys_of
from fedray.trace.imported import ImportedTrace, imported_digest
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

# pyarrow makes these functions at import, and its stubs do not know them.
_COMPUTE: Any = pc


@dataclass(frozen=True)
class Chargeable:
    """An audited run, training or log, as a ledger charges it."""

    audit: Audit
    """Audit of its trace, with its mechanism and noise."""
    start: date | None
    """Day on which the run started (UTC); None for the times of a log."""
    trained: TrainedRun | None
    """Training whose scenario the audit has; None for a run or log."""
    unit: str
    """Unit of the ledger's budget: device or person."""
    observer: str
    """Observer of the ledger's budget: models or operator."""

    @property
    def columns(self) -> list[str]:
        """Columns of a log that name a unit; one for a simulated run."""
        return _columns_of(self.audit.trace, self.unit)

    def line(self) -> Charged:
        """Returns the line of the charge, under a name from its identity and without windows."""
        audit, start = self.audit, self.start
        trace, run, noise, edges = audit.trace, run_of(audit), (), [None, None]
        parts: list[Any] = [run, audit.digest, trace.run["rounds_digest"]]
        are_distinct = False
        if isinstance(trace, ImportedTrace):
            are_distinct = trace.are_distinct(ROLES[self.unit])
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
            model = self.trained or trace.trained
            kinds = {} if model is None else model.document
            device = str(kinds.get("aggregator_device", "cpu"))
            noise = noise_of(audit.scenario, device, is_training=self._is_training)
            parts += [noise, kinds.get("aggregator_device"), kinds.get("trainer_device")]
        identity = hashlib.sha256(repr([*parts, start, *edges]).encode()).hexdigest()
        of_line: Any = {"run": run, "trace": _digest_of(audit), "identity": identity}
        of_line |= {
            "name": identity[:12],
            "first": edges[0],
            "last": edges[1],
            "start": start,
            "noise": noise,
            "columns": len(self.columns),
            "are_distinct": are_distinct,
            "vocabularies": vocabularies_of(audit.scenario, self._most_devices),
        }
        return Charged(**of_line, windows={})

    def windows(
        self,
        folder: Path,
        period: str,
        promised: Mapping[str, Sequence[Promise]],
        charged_runs: Collection[str],
    ) -> dict[str, tuple[Spent, ...]]:
        """Writes the units of the charge to files, and returns its windows.

        Args:
            folder: directory of the ledger.
            period: length of its windows, a key of PERIODS.
            promised: worst cases of the run's reservation by window, which bound what it enforces.
            charged_runs: digests of the scenarios of charged runs.

        Raises:
            InputError: the amounts or the days of the trace are unknown, or the answers of a
                training's run are not charged.
            OSError: a file cannot be written.
        """
        trace, patterns = self.audit.trace, self.audit.patterns
        parts = list(self._parts(charged_runs))
        named = PERIODS[period]
        of_rounds = [named(each) for each in _days_of_rounds(trace, self.start)]
        names, keys = _names_of(trace, self.unit)
        windows: dict[str, tuple[Spent, ...]] = {}
        for window in sorted(set(of_rounds)):
            is_inside = np.array([each == window for each in of_rounds])
            inside = _restricted(patterns, is_inside[patterns.rounds])
            if not inside.device_ids.size:
                continue
            if self.unit == "person":
                inside = joined_by_owner(inside)
            ids = pa.array(inside.device_ids)
            own_names = ids if names is None else names.take(ids)
            own_keys = own_names if keys is None else keys.take(ids)
            found = []
            for part in parts:
                units = Units(own_names, own_keys, part.amounts_of(inside))
                enforced = list(part.enforced)
                bounds = [e.amount for e in promised.get(window, ()) if e.release == part.release]
                if bounds:
                    enforced.append(math.fsum(bounds))
                found.append(
                    Spent(
                        release=part.release,
                        file=write_units(folder, self.unit, part.release, units),
                        enforced=min(enforced, default=None),
                    )
                )
            windows[window] = tuple(found)
        return windows

    @property
    def _is_training(self) -> bool:
        """Whether a model was trained on the trace of a run, which is another release."""
        return self.trained is not None or _has_other_scenario(self.audit)

    @property
    def _trust(self) -> AnyTrust:
        """Trust of the model. Raises InputError if it is unknown."""
        if self.audit.trust is None:
            raise InputError.of(
                "claim.trust",
                None,
                "must be given, because the budget is against the operator of the server",
                "state who adds the noise, or charge a budget of the observer models",
            )
        return self.audit.trust

    def _parts(self, charged_runs: Collection[str]) -> Iterator["_Part"]:
        """Yields the model and the answers of the trace. Raises InputError."""
        audit = self.audit
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
        if self.unit == "person" and audit.persons is None:
            raise InputError(
                f"{named} does not say who owns its devices, but the budget is of persons; "
                "import the log with owners, or set population.owners"
            )
        if used is not None and used.noise is not None:
            noise, resting = used.noise, used.resting(self.unit)
            ensured = [each.rho for each in resting if each.rho is not None]
            if self.observer == "operator":
                trust = self._trust
                noise = noise_against_operator(trust, noise)
                seen = against_operator(trust_of_model(trust, used.noise))
                events = [each.event for each in resting if each.rho is not None]
                ensured = [rho_of(seen(each)) for each in events if each is not None]
            strategy = used.strategy
            yield _Part(
                "gaussian" if isinstance(used.noise, ServerNoise) else "zcdp",
                lambda inside: rhos_of(
                    noise,
                    device_sensitivities(strategy, inside).values,
                    changed_rounds(noise, inside),
                ),
                ensured,
            )
        scenario = audit.scenario
        if self.observer == "operator" and (cost := vocabulary_cost(scenario)) is not None:
            against_operator(cost.trust)
        if scenario is None or scenario.analytics is None:
            return
        if self._is_training:
            # The run released the answers, so they are charged with it, once.
            if _scenario_of_run(audit.trace) not in charged_runs:
                raise InputError(
                    f"{named} is of a run that released answers too, which the ledger does not "
                    "have; charge the run first"
                )
        else:
            most = [
                float(each.windows)
                for each in audit.answers or ()
                if each.unit == "device"
                if each.basis == "enforced" and each.may_rest_on and each.windows is not None
            ]
            if self.observer == "operator":
                against_operator(scenario.analytics.trust[0].kind)
            for release, amounts_of, of_window in answer_parts(scenario, self._most_devices):
                yield _Part(release, amounts_of, [of_window * each for each in most])

    @property
    def _most_devices(self) -> int:
        """Most devices of a unit of the budget."""
        if self.unit == "device" or self.audit.persons is None:
            return 1
        return self.audit.persons.most_devices


class _Part(NamedTuple):
    """A model or the answers to a question, as a ledger charges it."""

    release: Release
    amounts_of: Callable[[Patterns], Float64Array]
    """Function that returns the amount of each unit [P] from its rounds in a window."""
    enforced: list[float]
    """Bounds on the amount of any unit, by the rules of the run."""


class AnswerPart(NamedTuple):
    """A component of the spending on answers, as a ledger charges it."""

    release: Release
    amounts_of: Callable[[Patterns], Float64Array]
    """Function that returns the amount of each unit [P] from its windows."""
    of_window: float
    """Largest amount of a unit in a window in which all its devices answer."""


def answer_parts(scenario: Scenario, most_devices: int) -> Iterator[AnswerPart]:
    """Yields the components of a unit's spending on the answers to a scenario's question.

    A device spends a number of answers. Of a person with several devices, epsilons of answers at
    delta 0 add up, as do deltas and rho of each window (mechanisms/accounting/group.py).

    Args:
        scenario: scenario with a question.
        most_devices: most devices of a unit; 1 for a budget of devices.

    Raises:
        InputError: the scenario has several trust models, or no group privacy is known for its
            question.
    """
    plan = charged_plan(scenario)
    if most_devices == 1:
        # A device answers once in a window.
        counts: Any = lambda inside: inside.counts.astype(np.float64)  # noqa: E731
        yield AnswerPart(plan.event.to_json(), counts, 1.0)
        return
    assert scenario.analytics is not None
    loss = WindowLoss.of(plan.event, scenario.analytics.delta or scenario.privacy.delta)
    most = np.array([most_devices])

    def summed(of_window: Callable[[Int64Array], Any]) -> Any:
        def amounts_of(inside: Patterns) -> Float64Array:
            persons, devices = joint_answers(inside)
            found = np.bincount(persons, of_window(devices), inside.counts.size)
            return found.astype(np.float64)

        return amounts_of, float(of_window(most)[0])

    if loss.epsilon:
        yield AnswerPart("pure", *summed(lambda devices: loss.epsilon * devices))
    if loss.rho:
        yield AnswerPart("zcdp", *summed(lambda devices: loss.rho * devices**2.0))
    if loss.delta:
        # In failures of a window in which all devices of a person answer.
        whole = float(loss.failures(most)[0])
        if loss.delta * whole >= 1:
            raise InputError(
                f"a person with {most_devices} devices has no guarantee for the answers: "
                f"{TOO_MANY}; lower analytics.epsilon or population.owners.most_devices"
            )
        failure = ApproximateDP(epsilon=0.0, delta=loss.delta * whole, theorem=GROUP_THEOREM)
        yield AnswerPart(failure.to_json(), *summed(lambda devices: loss.failures(devices) / whole))


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
        kinds = set() if scenario.privacy.sent.adds_noise else {device.split()[0]}
        # Discrete noise and the noise of counts are drawn on a CPU.
        if not kinds or scenario.count_noise is not None:
            kinds.add("cpu")
        drawn = [f"on {each}" for each in sorted(kinds)]
    # Answers have draws of their own.
    if asks and not is_training:
        drawn.append("of answers")
    return tuple(f"{scenario.training_seed} {each}" for each in drawn)


def vocabularies_of(scenario: Scenario | None, most_devices: int) -> tuple[Vocabulary, ...]:
    """Returns the private vocabulary of a scenario's data, if it has one, as a unit with some
    devices spent on it."""
    cost = vocabulary_cost(scenario)
    if cost is None:
        return ()
    event = vocabulary_event(cost, most_devices).to_json()
    return (Vocabulary(run=cost.run, sha256=cost.vocabulary_sha256, event=event),)


def run_of(audit: Audit) -> str:
    """Returns the digest of the scenario of a run or training, or of a log's claim."""
    if audit.scenario is not None:
        # A training has its own scenario on the trace of a run.
        is_own = not _has_other_scenario(audit)
        return _scenario_of_run(audit.trace) if is_own else audit.scenario.digest
    claim = audit.claim
    # A claim that states no trust has the digest of earlier releases.
    keys = {"mechanism", "noise_multiplier", *(("trust",) if claim and claim.trust else ())}
    text = claim.model_dump_json(include=keys) if claim else ""
    return hashlib.sha256(text.encode()).hexdigest()


def _has_other_scenario(audit: Audit) -> bool:
    """Whether the audit has another scenario than the run whose trace it is of."""
    own = audit.trace.run.get("scenario_digest")
    return audit.scenario is not None and audit.scenario.digest != own


def _scenario_of_run(trace: Trace | ImportedTrace) -> str:
    """Returns the digest of the scenario of a run, of all its tasks."""
    return trace.run.get("task", trace.run)["scenario_digest"]


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
    ranks = _COMPUTE.rank(_names_of(audit.trace, "device")[1], tiebreaker="dense").to_numpy()
    found = audit.patterns
    devices = np.repeat(ranks[found.device_ids], found.counts).astype(np.uint64)
    rows = np.unique(devices << np.uint64(32) | found.rounds)
    return imported_digest(rows >> np.uint64(32), rows.astype(np.uint32))


def _names_of(trace: Trace | ImportedTrace, unit: str) -> tuple[pa.Array | None, pa.Array | None]:
    """Returns names and keys of the units of a log as text, by their ids; None for a simulated run,
    whose ids are numbers."""
    if isinstance(trace, Trace):
        return None, None
    ids = trace.ids_of(ROLES[unit])
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
