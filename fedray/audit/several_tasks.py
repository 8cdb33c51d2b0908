"""The audit of several tasks on one population: each trace by itself, and the privacy that a device
spent over all tasks together.

Tasks add independent noise, and each may depend on the others' releases. So the releases that use a
device's data compose: zCDP adds up (Bun and Steinke 2016, Lemma 1.7), and Gaussian mechanisms are
one with mu^2 = mu_1^2 + mu_2^2 + ... (Dong, Roth, Su 2022, Corollary 3.3), for the device's own
patterns. That is exact for Gaussian noise if the sensitivities of its patterns are exact. A task
that evaluates a model adds the event of its question once per answer of the device.

The largest over devices is the observed guarantee of the run. It is at most the sum over tasks of
each task's largest, which may belong to different devices; enforced limits give that sum.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.distribution import CURVE_STEPS, SHARES, at_shares, device_sensitivities
from fedray.audit.guarantees import OBSERVED_CANNOT_BE_RESTED_ON
from fedray.audit.mechanism_audit import MechanismAudit
from fedray.audit.noise import DeviceNoise, changed_rounds, released, rhos_of
from fedray.audit.participation import Patterns, patterns_by_part
from fedray.base.arrays import Float64Array, Int64Array, UInt64Array
from fedray.base.document import Document, InJson, Key, NotInJson, Only
from fedray.base.errors import InputError, shown
from fedray.base.result import DrawnResult
from fedray.base.rounding import up
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed, Event, Repeated
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.trace.several_tasks import TasksRun

ASSUMPTIONS = (
    "The unit of privacy is a device with all that it contributed to any of the tasks.",
    "The tasks added independent noise: each drew its own by a seed of its own (training.seed).",
    "The attacker may see the released models and answers of all tasks.",
)
"""Assumptions of the composition, beside the assumptions of each task's audit."""


@dataclass(frozen=True, slots=True)
class TaskSpending:
    """Privacy that one device spent in one task."""

    task: str
    """Name of the task."""
    rounds: tuple[int, ...]
    """Rounds in which the device took part, in order."""
    sensitivity: float | None
    """Sensitivity of these rounds, at contributions of norm 1; None if the task trains no model,
    and the device answered a question in each round."""
    rho: float
    """zCDP of that sensitivity."""


class SpentShare(NamedTuple):
    """A share of the devices, and a privacy loss over all tasks that they do not exceed."""

    share: float
    """Share of the devices whose privacy is at least this good, from 0 to 1."""
    rho: float
    """rho (zCDP) that these devices do not exceed."""


@dataclass(frozen=True, slots=True)
class Composition(Document):
    """Privacy that devices spent over all tasks."""

    delta: float
    """delta of every epsilon here."""
    devices: int
    """Number of devices that took part in at least one task."""
    devices_by_tasks: tuple[int, ...]
    """Number of them that took part in 1, 2, .. tasks."""
    worst_device: NotInJson[int]
    """The device with the largest epsilon; of equal ones, the one with the smallest id."""
    spent: NotInJson[tuple[TaskSpending, ...]]
    """Privacy that this device spent in each task in which it took part."""
    rho: NotInJson[float]
    """rho (zCDP) of this device over all tasks: observed, for the recorded rounds. The largest over
    devices is the quantile of share 1."""
    epsilon: NotInJson[float]
    """Epsilon of this device at delta, of all its releases and answers together."""
    is_exact: NotInJson[bool]
    """Whether rho and epsilon are exact; if not, they are upper bounds."""
    largest: NotInJson[Mapping[str, float]]
    """Largest rho of a device in each task by itself, by the task's name."""
    bound_rho: NotInJson[float]
    """Sum of the tasks' largest rho: an upper bound, since the largest may belong to different
    devices."""
    bound_epsilon: NotInJson[float]
    """The epsilon of that sum."""
    enforced_rho: NotInJson[float | None]
    """Sum over tasks of the rho of their enforced limits; None if a task has no limits."""
    enforced_epsilon: NotInJson[float | None]
    """The epsilon of that sum."""
    enforced_reason: NotInJson[str]
    """A sentence that says why a guarantee may rest on the enforced sum, or why not."""
    quantiles: tuple[SpentShare, ...]
    """Privacy that devices spent over all tasks."""
    mean_rho: float
    """Mean rho over these devices."""
    curves: NotInJson[Mapping[str, tuple[float, ...]]]
    """rho that the share i / CURVE_STEPS of the devices do not exceed, for i = 1 .. CURVE_STEPS: by
    task name for the devices that took part in it, and under '' for all tasks together."""
    observed_reason: ClassVar[str] = OBSERVED_CANNOT_BE_RESTED_ON
    """Reason why no guarantee may rest on observed figures: a sentence."""

    @property
    def observed(
        self,
    ) -> Annotated[
        "Composition",
        Only("rho epsilon is_exact device=worst_device tasks=spent reason=observed_reason"),
    ]:
        """Privacy of the device that spent most."""
        return self

    @property
    def sum_of_largest(
        self,
    ) -> Annotated["Composition", Only("rho=bound_rho epsilon=bound_epsilon tasks=largest")]:
        """Sum of the tasks' largest figures."""
        return self

    @property
    def enforced(
        self,
    ) -> Annotated[
        "Composition",
        Only("rho=enforced_rho epsilon=enforced_epsilon reason=enforced_reason"),
    ]:
        """Sum of the tasks' enforced figures."""
        return self


@dataclass(frozen=True, slots=True)
class TasksAudit(DrawnResult):
    """Audits of the traces of several tasks, and their composition over devices."""

    TABLES: ClassVar[str] = "fedray.report.audits:tasks_tables"
    SUBJECT: ClassVar[str] = "fedray.report.subjects:tasks_subject"
    FIGURES: ClassVar[str] = "fedray.report.several_tasks:tasks_figures"
    PAGE: ClassVar[str] = "fedray.report.several_tasks:tasks_page"

    path: Annotated[Path, Key("run")]
    """Directory of the run."""
    digest: str
    """Digest of the traces together."""
    audits: Annotated[Mapping[Annotated[str, "task"], Audit], Key("tasks")]
    """Audits of the tasks by their names. A task that committed no round released nothing, and has
    no audit."""
    without_rounds: tuple[str, ...]
    """The tasks that committed no round."""
    composition: Composition
    """Privacy that devices spent over all tasks."""
    assumptions: ClassVar[InJson[tuple[str, ...]]] = ASSUMPTIONS
    """Assumptions of the composition, beside the audit of each task."""

    def __repr__(self) -> str:
        found = self.composition
        of_tasks = f"{len(self.audits)} tasks, {found.devices:,} devices"
        spent = f"observed epsilon {up(found.epsilon)}"
        return f"<TasksAudit of {shown(str(self.path))}: {of_tasks}, {spent}>"


def audit_tasks(run: TasksRun | str | Path, delta: float | None = None) -> TasksAudit:
    """Audits the traces of several tasks, and composes them over the devices.

    Args:
        run: the run, opened or by path.
        delta: delta of every epsilon, in place of each task's own. By default the composition has
            the smallest of these, which gives the largest epsilon.

    Raises:
        InputError: delta is impossible, or no device took part in any task.
        TraceError: a trace cannot be read.
    """
    opened = run if isinstance(run, TasksRun) else TasksRun.open(run)
    # A task without a committed round released nothing that could be audited.
    committed = {name: each for name, each in opened.traces.items() if each.committed_rounds}
    audits = {name: audit_trace(trace, delta=delta) for name, trace in committed.items()}
    if not audits:
        raise InputError(
            f"run {str(opened.path)!r}: no task committed a round, so nothing was spent; audit a "
            "run in which some did"
        )
    return TasksAudit(
        path=opened.path,
        digest=opened.digest,
        audits=audits,
        without_rounds=tuple(name for name in opened.traces if name not in audits),
        composition=_composed(opened, audits, delta),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Privacy that the devices [P] of one part of the traces spent over all tasks."""

    device_ids: UInt64Array
    rho: Float64Array
    """rho of each device, of models and answers."""
    of_gaussians: Float64Array
    """rho of its Gaussian releases."""
    tasks: Int64Array
    """Number of its tasks."""
    others: Float64Array
    """Amounts that it spent in each of the E tasks without Gaussian noise, [P, E]."""


@dataclass(frozen=True, slots=True)
class _TaskPart:
    """Privacy that the devices [Q] of one part of one task's trace spent in it."""

    patterns: Patterns
    amounts: Float64Array
    """Sensitivities of the devices' rounds, or numbers of their answers."""
    rho: Float64Array
    is_exact: bool


class _Spending:
    """Privacy that devices spent on a model, by the parts of its trace."""

    is_evaluation = False

    def __init__(self, run: TasksRun, name: str, audit: Audit) -> None:
        used: MechanismAudit = audit.mechanisms[0]
        assert used.noise is not None
        self._noise, self._strategy = used.noise, used.strategy
        # The most of any device, so that spending grows with sensitivity.
        self._changed = int(changed_rounds(used.noise, audit.patterns).max())
        self._trace = run.traces[name]
        # One table of the mechanism serves all parts of its trace.
        rounds = self._trace.committed_rounds
        self._sensitivities = PatternSensitivities(used.strategy, rounds)
        # Only Gaussian noise composes exactly, and is compared by rho.
        self.is_gaussian = not isinstance(used.noise, DeviceNoise)
        self.delta, self.largest = used.observed.delta, used.observed.event
        self.enforced = used.enforced

    def parts(self) -> Iterator[_TaskPart]:
        """Yields the parts in order of the devices."""
        for patterns in patterns_by_part(self._trace):
            # No device of this part may have been accepted in this task.
            if not patterns.device_ids.size:
                none = np.empty(0)
                yield _TaskPart(patterns, none, none, True)
                continue
            found = device_sensitivities(self._strategy, patterns, self._sensitivities)
            is_exact = bool(found.is_exact.all())
            changed = np.full(found.values.size, self._changed)
            rho = rhos_of(self._noise, found.values, changed)
            yield _TaskPart(patterns, found.values, rho, is_exact)

    def event(self, amount: float) -> Event:
        """Returns the spending of a device whose rounds have a sensitivity."""
        return released(self._noise, amount, self._changed)


class _Answered(_Spending):
    """Privacy that devices spent on an evaluation, by the parts of its trace."""

    is_evaluation = True
    is_gaussian = False  # the event of a question is a bound on its loss

    def __init__(self, run: TasksRun, name: str, audit: Audit, delta: float | None) -> None:
        assert audit.answers is not None
        assert audit.scenario is not None
        self._trace = run.traces[name]
        # `SeveralTasks` refuses evaluations with several trust models.
        of_device = [each for each in audit.answers if each.unit == "device"]
        one, observed, enforced = of_device
        assert one.event is not None
        self._one = one.event
        self.delta = delta or audit.scenario.privacy.delta
        self.largest, self.enforced = observed.event, enforced

    def parts(self) -> Iterator[_TaskPart]:
        unit = rho_of(self._one)
        for patterns in patterns_by_part(self._trace):
            counts = patterns.counts.astype(np.float64)
            yield _TaskPart(patterns, counts, counts * unit, is_exact=False)

    def event(self, amount: float) -> Event:
        return Repeated(event=self._one, count=int(amount))  # pyright: ignore[reportArgumentType]


class _Worst:
    """The device with the largest epsilon, found part by part.

    What a device spent grows with the rho of its Gaussian releases, which decides their epsilon,
    and with its amount in each other task: noise of devices, which only zCDP bounds, and
    answers. So only devices that no other exceeds in all of these are candidates.
    """

    def __init__(self, delta: float, spendings: Mapping[str, _Spending]) -> None:
        self._delta, self._spendings = delta, spendings
        self._found: dict[
            tuple[float, ...], tuple[float, int, tuple[TaskSpending, ...], Event]
        ] = {}
        """rho of Gaussian releases, device, spending and event, by amounts in the other tasks."""

    def add(self, part: _Part, of_tasks: Sequence[_TaskPart]) -> None:
        """Adds the devices of a part."""
        if not part.rho.size:
            return
        # Devices with equal amounts are compared by their Gaussian releases.
        kinds, rows = np.zeros((1, 0)), np.zeros(part.rho.size, np.int64)
        if part.others.shape[1]:
            kinds, rows = np.unique(part.others, axis=0, return_inverse=True)
        for kind, amounts in enumerate(map(tuple, kinds.tolist())):
            members = np.flatnonzero(rows.ravel() == kind)
            # The first of equal ones, which has the smallest id.
            place = members[part.of_gaussians[members].argmax()]
            rho, device = float(part.of_gaussians[place]), int(part.device_ids[place])
            if rho > self._found.get(amounts, (-1.0,))[0]:
                pairs = zip(self._spendings, of_tasks, strict=True)
                found = [each for name, of in pairs for each in self._spent(device, name, of)]
                spent, events = zip(*found, strict=True)
                self._found[amounts] = rho, device, spent, _all_of(events)

    def of_all(self) -> tuple[float, float, int, tuple[TaskSpending, ...]]:
        """Returns rho, epsilon and id of the device with the largest epsilon, and what it spent in
        each task."""
        found = [
            (_epsilon_of([event], self._delta), _rho_of([event]), -device, spent)
            for amounts, (rho, device, spent, event) in self._found.items()
            if not any(
                amounts != others
                and rho <= theirs[0]
                and all(mine <= other for mine, other in zip(amounts, others, strict=True))
                for others, theirs in self._found.items()
            )
        ]
        # Ties go to the device with the smallest id.
        epsilon, rho, device, spent = max(found, key=lambda each: each[:3])
        return rho, epsilon, -device, spent

    def _spent(
        self, device: int, name: str, part: _TaskPart
    ) -> Iterator[tuple[TaskSpending, Event]]:
        """Yields the privacy that a device spent in a task, if it took part."""
        patterns, spending = part.patterns, self._spendings[name]
        place = int(np.searchsorted(patterns.device_ids, np.uint64(device)))
        # searchsorted returns a place even for a device that is absent.
        if place < patterns.device_ids.size and int(patterns.device_ids[place]) == device:
            start = int(patterns.starts[place])
            rounds = patterns.rounds[start : start + int(patterns.counts[place])]
            amount, rho = float(part.amounts[place]), float(part.rho[place])
            sensitivity = None if spending.is_evaluation else amount
            told = TaskSpending(name, tuple(rounds.tolist()), sensitivity, rho)
            yield told, spending.event(amount)


def _composed(run: TasksRun, audits: Mapping[str, Audit], given: float | None) -> Composition:
    """Composes the tasks part by part; parts of all traces are cut at the same devices."""
    spendings: dict[str, _Spending] = {
        name: _Spending(run, name, audit)
        if audit.mechanisms
        else _Answered(run, name, audit, given)
        for name, audit in audits.items()
    }
    are_gaussian = [each.is_gaussian for each in spendings.values()]
    # The smallest delta gives the largest epsilon, which is safe for all tasks.
    delta = min(each.delta for each in spendings.values())
    parts: list[_Part] = []
    own_rhos: dict[str, list[Float64Array]] = {name: [] for name in audits}
    worst = _Worst(delta, spendings)
    is_exact = all(are_gaussian)
    for of_tasks in zip(*(each.parts() for each in spendings.values()), strict=True):
        joined = _join(of_tasks, are_gaussian)
        parts.append(joined)
        worst.add(joined, of_tasks)
        for name, each in zip(audits, of_tasks, strict=True):
            own_rhos[name].append(each.rho)
            is_exact &= each.is_exact
    rho = np.concatenate([part.rho for part in parts])
    tasks = np.concatenate([part.tasks for part in parts])
    # The tasks' largest may belong to different devices, so their sum is an upper bound.
    at_most = {name: each.largest for name, each in spendings.items()}
    largest = {name: _rho_of([event]) for name, event in at_most.items()}
    bound = list(at_most.values())
    bound_rho, bound_epsilon = _rho_of(bound), _epsilon_of(bound, delta)
    worst_rho, epsilon, worst_device, spent = worst.of_all()
    # If sensitivities of devices are upper bounds, an audit's own may be tighter.
    if not is_exact:
        worst_rho, epsilon = min(worst_rho, bound_rho), min(epsilon, bound_epsilon)
    enforced = _enforced(spendings, delta)
    curves = {name: _curve(np.concatenate(each)) for name, each in own_rhos.items()}
    return Composition(
        delta=delta,
        devices=int(rho.size),
        # Every device here took part in some task, so the count of 0 tasks is left out.
        devices_by_tasks=tuple(np.bincount(tasks, minlength=len(audits) + 1)[1:].tolist()),
        worst_device=worst_device,
        spent=spent,
        rho=worst_rho,
        epsilon=epsilon,
        is_exact=is_exact,
        largest=largest,
        bound_rho=bound_rho,
        bound_epsilon=bound_epsilon,
        enforced_rho=enforced[0],
        enforced_epsilon=enforced[1],
        enforced_reason=enforced[2],
        quantiles=tuple(map(SpentShare, SHARES, at_shares(rho, np.array(SHARES)))),
        # fsum rounds once, so the mean does not depend on how traces are cut into parts.
        mean_rho=math.fsum(rho.tolist()) / rho.size,
        curves={"": _curve(rho), **curves},
    )


def _join(of_tasks: Sequence[_TaskPart], are_gaussian: list[bool]) -> _Part:
    """Adds up the privacy that each device of a part spent in every task."""
    ids = [each.patterns.device_ids for each in of_tasks]
    device_ids, places = np.unique(np.concatenate(ids), return_inverse=True)
    of_gaussians, of_others = np.zeros((2, device_ids.size))
    others = np.zeros((device_ids.size, are_gaussian.count(False)))
    # Task by task, so that float sums do not depend on the size of a part.
    begin, columns = 0, iter(others.T)
    for each, is_gaussian in zip(of_tasks, are_gaussian, strict=True):
        end = begin + each.rho.size
        here, begin = places[begin:end], end
        (of_gaussians if is_gaussian else of_others)[here] += each.rho
        if not is_gaussian:
            next(columns)[here] = each.amounts
    tasks = np.bincount(places, minlength=device_ids.size)
    return _Part(device_ids, of_gaussians + of_others, of_gaussians, tasks, others)


def _enforced(
    spendings: Mapping[str, _Spending], delta: float
) -> tuple[float | None, float | None, str]:
    """Returns rho, epsilon and the reason of the enforced limits of all tasks together."""
    guarantees = {name: each.enforced for name, each in spendings.items()}
    unknown = [name for name, each in guarantees.items() if each.event is None]
    if unknown:
        return None, None, f"task {unknown[0]}: {guarantees[unknown[0]].reason}"
    # A guarantee may rest on the sum only if one may rest on every part.
    shaky = [name for name, each in guarantees.items() if not each.may_rest_on]
    reason = (
        "every device keeps the rules of each task, whose enforced limits add up, so that the sum "
        "may be published"
    )
    if shaky:
        why = guarantees[shaky[0]].reason
        reason = f"this may not be published, because of the limits of task {shaky[0]}: {why}"
    events = [each.event for each in guarantees.values()]
    return _rho_of(events), _epsilon_of(events, delta), reason


def _rho_of(events: Sequence[Event | None]) -> float:
    return rho_of(_all_of(events))


def _epsilon_of(events: Sequence[Event | None], delta: float) -> float:
    return epsilon_of(_all_of(events), delta).epsilon


def _all_of(events: Sequence[Event | None]) -> Event:
    # Tasks may read each other's models. Composition allows that: each event bounds a release for
    # every value of the earlier ones.
    known: tuple[Any, ...] = tuple(each for each in events if each is not None)
    # Every task of a run has noise, and so an event.
    assert len(known) == len(events)
    return known[0] if len(known) == 1 else Composed(events=known)


def _curve(values: Float64Array) -> tuple[float, ...]:
    return tuple(at_shares(values, np.arange(1, CURVE_STEPS + 1) / CURVE_STEPS))
