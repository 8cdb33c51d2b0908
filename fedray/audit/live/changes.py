"""Least changes that keep a claim which is in danger, each verified by the forward guarantee."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedray.audit.forward import forward_sensitivity, least_noise_growth
from fedray.audit.live.promise import Promise
from fedray.audit.live.reached import Reached, reached
from fedray.audit.live.rules_ahead import RulesAhead
from fedray.audit.live.waiting import who_waits
from fedray.audit.noise import DeviceNoise
from fedray.audit.participation import Patterns
from fedray.base.arrays import BoolArray, Int64Array
from fedray.base.document import Document, IfAny, NotInJson
from fedray.base.errors import InputError
from fedray.base.rounding import counted, up
from fedray.mechanisms.continuation import Continued, Future, largest_continued
from fedray.mechanisms.strategy import SensitivityUnknown, Strategy

Kind = Literal["list", "separation", "cap", "timer", "last round", "noise"]


@dataclass(frozen=True, slots=True)
class Change(Document):
    """A change from the next round on that keeps a claim, or the reason why none of its kind
    does."""

    kinds: tuple[Kind, ...]
    """Its parts: a list of devices that must wait, a least separation, a cap on participations, a
    timer, an earlier last round, or more noise."""
    is_enough: bool
    """Whether it keeps the claim, as the forward guarantee under it shows."""
    text: str
    """The change in words, or the reason why it does not help."""
    separation: IfAny[int] = None
    """Least separation in rounds of all devices from now on. Absent without one."""
    max_participations: IfAny[int] = None
    """Most participations of a device, past ones included. Absent without a cap."""
    timer_hours: IfAny[float] = None
    """Least hours from one participation to the next from now on. Absent without a timer."""
    last_round: IfAny[int] = None
    """Number of rounds after which to stop. Absent unless it changes."""
    noise_factor: IfAny[float] = None
    """Factor of the noise multiplier from the next round on. Absent without more noise."""
    held: IfAny[int] = None
    """Number of devices on the list. Absent without a list."""
    never: IfAny[int] = None
    """Number of them that may not take part again. Absent without a list."""
    share_held: IfAny[float] = None
    """Held devices over all devices that took part so far. Absent without a list."""
    sensitivity: IfAny[float] = None
    """Largest sensitivity under the change. Absent if it does not help."""
    min_sep: IfAny[int] = None
    """Least separation that any device can reach under it. Absent if it does not help."""
    participations: IfAny[int] = None
    """Most participations that any device can reach under it. Absent if it does not help."""
    first: NotInJson[Int64Array | None] = None
    """First round of each device, [P], as `who_waits` returns it; None without a list."""


@dataclass(frozen=True, eq=False)
class Ahead:
    """The forward guarantee of a trace under rules that may change."""

    strategy: Strategy
    patterns: Patterns
    promise: Promise
    waiting: Int64Array
    """First round in which each device may take part again by the list in force, [P]; 0 without."""

    def future(self, rules: RulesAhead, first: Int64Array | None = None) -> Future:
        """Returns the rounds that rules, the list in force and further waits [P] leave open."""
        return rules.future(self.waiting if first is None else np.maximum(self.waiting, first))

    def sensitivity(self, rules: RulesAhead, first: Int64Array | None = None) -> Continued:
        """Returns the largest sensitivity of all devices."""
        found = forward_sensitivity(self.strategy, self.patterns, self.future(rules, first))
        if not rules.is_outer:
            return found
        theorem = f"{found.theorem}; local days as 24 h (upper bound)"
        return replace(found, is_exact=False, theorem=theorem)

    def under(
        self, rules: RulesAhead, first: Int64Array | None = None
    ) -> tuple[Continued, Reached]:
        """Returns the largest sensitivity, and the (b, k) reached, of all devices."""
        limits = reached(self.patterns, self.future(rules, first))
        return self.sensitivity(rules, first), limits

    def of_new(self, rules: RulesAhead) -> tuple[Continued, Reached]:
        """Returns the same of devices without a past."""
        future = rules.future()
        return largest_continued(self.strategy, (), future), reached(None, future)

    def keeps(self, found: tuple[Continued, Reached], rounds: int) -> bool:
        """Whether figures after `rounds` rounds keep the claim."""
        return self.promise.allows(found[0].value, found[1], rounds)

    def only_of(self, is_chosen: BoolArray) -> "Ahead":
        """Returns the guarantee of some devices [P] only."""
        whole = self.patterns
        rows = np.repeat(is_chosen, whole.counts)
        chosen = Patterns(
            whole.committed_rounds,
            whole.device_ids[is_chosen],
            whole.counts[is_chosen],
            whole.rounds[rows],
            None if whole.weights is None else whole.weights[rows],
        )
        return replace(self, patterns=chosen, waiting=self.waiting[is_chosen])


def changes_that_keep(
    ahead: Ahead, rules: RulesAhead, limits: Reached, slowest_hours: float | None
) -> Iterator[Change]:
    """Yields the least change of each sort for a claim that is in danger.

    Args:
        ahead: the forward guarantee, with the claim.
        rules: the rules in force.
        limits: (b, k) that devices reach under them.
        slowest_hours: stated pace; None without one, when no timer can be advised.
    """
    nobody = rules.stricter(most=0)
    is_late = rules.rounds > (ahead.promise.rounds or rules.rounds)
    if is_late or not ahead.keeps(ahead.under(nobody), rules.rounds):
        reason = (
            f"the claim allows {counted(ahead.promise.rounds or 0, 'round')}"
            if is_late
            else "already the rounds that are released would exceed the claim after "
            f"{rules.rounds:,} rounds, even if no device took part again"
        )
        text = f"No list and no rule can help: {reason}"
        yield Change(("list",), False, text)
    else:
        try:
            first = who_waits(ahead.strategy, ahead.patterns, ahead.future(rules), ahead.promise)
        except SensitivityUnknown as error:
            yield Change(("list",), False, f"Lists and rules are not judged: {error}")
        else:
            # Devices that stay within the claim under the rules do so under stricter ones too.
            endangered = ahead.only_of(first > 0)
            yield from _lists(ahead, rules, first, slowest_hours)
            yield from _rules(ahead, endangered, rules, slowest_hours)
    yield _last_round(ahead, rules)
    yield _noise(ahead, rules, limits)


def _lists(
    ahead: Ahead, rules: RulesAhead, first: Int64Array, slowest_hours: float | None
) -> Iterator[Change]:
    """Yields a list of devices that must wait, or each list with a rule for new devices."""
    if ahead.keeps(ahead.of_new(rules), rules.rounds):
        yield _verified(ahead, rules, Change(("list",), True, ""), first)
        return
    none = Change(
        ("list",),
        False,
        "A list of known devices cannot help without a rule: a device that has not taken part yet "
        "may exceed the claim by itself",
    )
    yield none
    found = False
    for rule in _least_rules(ahead.of_new, ahead, rules, slowest_hours):
        ruled = _with(rules, rule)
        first = who_waits(ahead.strategy, ahead.patterns, ahead.future(ruled), ahead.promise)
        found = True
        # Without a device on it, the list adds nothing to the rule, which has a row of its own.
        if not first.any():
            continue
        yield _verified(ahead, ruled, replace(rule, kinds=("list", *rule.kinds)), first)
    if not found:
        text = "No list can help: one participation of a new device would exceed the claim"
        yield replace(none, text=text)


def _rules(
    ahead: Ahead, endangered: Ahead, rules: RulesAhead, slowest_hours: float | None
) -> Iterator[Change]:
    """Yields the least separation, cap and timer from now on without a list."""
    found = list(_least_rules(endangered.under, ahead, rules, slowest_hours))
    for rule in found:
        yield _verified(ahead, _with(rules, rule), rule, None)
    sorts: tuple[Kind, ...] = ("separation", "cap")
    for kind in sorts:
        if (kind,) in {each.kinds for each in found}:
            continue
        text = (
            f"No {kind} can help without a list: the released rounds of some devices cost too much"
        )
        yield Change((kind,), False, text)


def _with(rules: RulesAhead, rule: Change) -> RulesAhead:
    return rules.stricter(
        rule.separation or 1, rule.max_participations, 3600.0 * (rule.timer_hours or 0.0)
    )


def _least_rules(
    of: Callable[[RulesAhead], tuple[Continued, Reached]],
    ahead: Ahead,
    rules: RulesAhead,
    slowest_hours: float | None,
) -> Iterator[Change]:
    """Yields the least separation, the largest cap and the shortest timer in whole hours that keep
    the claim for the devices of `of`; none of a kind that cannot."""
    n = rules.rounds

    def is_kept(**stricter: float) -> bool:
        return ahead.keeps(of(rules.stricter(**stricter)), n)  # pyright: ignore[reportArgumentType]

    # No device takes part twice at a separation of all rounds.
    separation = _least(rules.separation, n, lambda b: is_kept(separation=b))
    if separation is not None:
        yield Change(("separation",), True, "", separation=separation)
    now = of(rules)[1].max_participations
    fewer = _least(0, now - 1, lambda less: is_kept(most=now - less))
    if fewer is not None:
        yield Change(("cap",), True, "", max_participations=now - fewer)
    if slowest_hours is not None and rules.times is not None:
        longest = math.ceil(slowest_hours * n)
        hours = _least(1, longest, lambda each: is_kept(timer_seconds=3600.0 * each))
        if hours is not None:
            yield Change(("timer",), True, "", timer_hours=float(hours))


def _least(low: int, high: int, is_kept: Callable[[int], bool]) -> int | None:
    """Returns the least number from `low` to `high` for which a claim is kept, if it is for all
    larger ones; None if it is not even for `high`."""
    if high < low or not is_kept(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_kept(middle) else (middle + 1, high)
    return high


def _verified(ahead: Ahead, rules: RulesAhead, change: Change, first: Int64Array | None) -> Change:
    """Returns a change with its figures and words, if the forward guarantee under it keeps the
    claim."""
    found = ahead.under(rules, first)
    if not ahead.keeps(found, rules.rounds):
        text = f"{_said(change, rules)}: not proven to keep the claim"
        return replace(change, is_enough=False, text=text)
    if first is not None:
        first = np.maximum(first, ahead.waiting)
        held = int((first > 0).sum())
        never = int((first >= rules.rounds).sum())
        share = held / max(1, first.size)
        change = replace(change, held=held, never=never, share_held=share, first=first)
    return _with_figures(replace(change, text=_said(change, rules)), found)


def _with_figures(change: Change, found: tuple[Continued, Reached]) -> Change:
    return replace(
        change,
        sensitivity=found[0].value,
        min_sep=found[1].min_sep,
        participations=found[1].max_participations,
    )


def _said(change: Change, rules: RulesAhead) -> str:
    parts = []
    if change.separation is not None:
        rounds = counted(change.separation, "round")
        parts.append(f"a separation of {rounds} from now on")
    if change.max_participations is not None:
        most = counted(change.max_participations, "participation")
        parts.append(f"at most {most} of a device, past ones included")
    if change.timer_hours is not None:
        rounds = counted(rules.in_rounds(3600.0 * change.timer_hours) or 0, "round")
        parts.append(f"a timer of {change.timer_hours:g} h, {rounds} at that pace, from now on")
    if change.held is not None:
        share = up(100.0 * (change.share_held or 0.0), 2)
        never = f", {change.never:,} of them for ever" if change.never else ""
        devices = counted(change.held, "device")
        parts.append(f"{devices} must wait{never} ({share} % of those seen)")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}"


def _last_round(ahead: Ahead, rules: RulesAhead) -> Change:
    """Returns the latest last round that keeps the claim without any other change."""
    n, r = rules.rounds, rules.released

    def is_kept(fewer: int) -> bool:
        earlier = rules.until(n - fewer)
        return ahead.keeps(ahead.under(earlier), n - fewer)

    fewer = _least(1, n - r, is_kept)
    if fewer is None:
        return Change(
            ("last round",), False, "No last round can help: stop now, and nothing is kept"
        )
    last = n - fewer
    text = f"Stop after {counted(last, 'round')}, {counted(last - r, 'round')} from now"
    change = Change(("last round",), True, text, last_round=last)
    return _with_figures(change, ahead.under(rules.until(last)))


def _noise(ahead: Ahead, rules: RulesAhead, limits: Reached) -> Change:
    """Returns the least factor of the noise from the next round on."""
    kind: tuple[Kind, ...] = ("noise",)
    if isinstance(ahead.promise.noise, DeviceNoise):
        return Change(kind, False, "More noise is not judged if devices add it")
    if ahead.promise.sensitivity is None or not ahead.promise.allows(0.0, limits, rules.rounds):
        return Change(kind, False, "More noise changes no number of rounds or participations")

    limit = ahead.promise.sensitivity
    try:
        grown = least_noise_growth(ahead.strategy, ahead.patterns, ahead.future(rules), limit)
    except (InputError, SensitivityUnknown) as error:
        return Change(kind, False, f"More noise from now on is not judged: {error}")
    if grown is None:
        text = "No noise from now on can help: the released rounds have spent the claim"
        return Change(kind, False, text)
    factor, found = grown
    text = f"{up(factor)} times the noise from the next round on"
    change = Change(kind, True, text, noise_factor=factor)
    return _with_figures(change, (found, limits))
