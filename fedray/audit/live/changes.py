"""Least changes that keep a claim which is in danger, each verified by the forward guarantee."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from fedray.audit.forward import forward_sensitivity, least_noise_growth
from fedray.audit.live.promise import Promise
from fedray.audit.live.reached import Reached, reached
from fedray.audit.live.round_numbers import RoundNumbers, named
from fedray.audit.live.rules_ahead import RulesAhead
from fedray.audit.live.waiting import who_waits
from fedray.audit.noise import DeviceNoise
from fedray.audit.participation import Patterns
from fedray.audit.statements.most_per_period import MostPerPeriod
from fedray.base.arrays import BoolArray, Int64Array
from fedray.base.document import Document, IfAny, NotInJson
from fedray.base.errors import InputError
from fedray.base.rounding import counted, up
from fedray.mechanisms.continuation import Continued, Future, largest_continued
from fedray.mechanisms.strategy import SensitivityUnknown, Strategy

Kind = Literal["claimed limits", "list", "separation", "cap", "timer", "last round", "noise"]
COSTLY = ("last round", "noise")
"""Kinds that cost more than the time of some devices, and come last."""
SOME = 10_000
"""Number of devices that are asked before all are."""
NEVER = 1 << 62
"""Round that no run reaches."""


@dataclass(frozen=True, slots=True)
class Change(Document):
    """A change from the next round on that keeps a claim, or the reason why none of its kind
    does."""

    kinds: tuple[Kind, ...]
    """Its parts: the limits of the claim as rules, a list of devices that must wait, a least
    separation, a cap on participations, a timer, an earlier last round, or more noise."""
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
    most_per_period: IfAny[MostPerPeriod] = None
    """Largest number of participations within a period. Absent without such a limit."""
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
    waits_now: IfAny[int] = None
    """Number of devices seen so far that may not take part in the next round, though as many rounds
    have passed as between any two participations so far. Absent if it does not help, and of a last
    round or noise."""
    share_waiting: IfAny[float] = None
    """Their share of the devices seen so far."""
    first_noticed: IfAny[int] = None
    """First round, numbered from 0, from which the change may keep a device away that comes as soon
    as devices did so far. Absent as `waits_now` is, and if there is none."""
    sensitivity: IfAny[float] = None
    """Largest sensitivity under the change. Absent if it is unknown."""
    epsilon: IfAny[float] = None
    """Its epsilon at the claim's delta."""
    is_exact: IfAny[bool] = None
    """Whether a pattern attains it; False for an upper bound."""
    min_sep: IfAny[int] = None
    """Least separation that any device can reach under it. Absent if it is unknown."""
    participations: IfAny[int] = None
    """Most participations that any device can reach under it. Absent if it is unknown."""
    breaks: tuple[str, ...] = ()
    """Statements of the claim that it does not keep, by their keys."""
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
    in_force: RulesAhead
    """The rules in force."""
    numbers: RoundNumbers | None = None
    """Numbers by which rounds are named; None for their places in the trace."""

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

    @property
    def usual(self) -> RulesAhead:
        """The rules in force, and the least separation that devices had so far."""
        return self.in_force.stricter(separation=self.patterns.min_sep or self.in_force.released)

    def broken(self, found: tuple[Continued, Reached], rules: RulesAhead) -> tuple[str, ...]:
        """Returns the statements of the claim that figures under rules break."""
        return self.promise.broken(found[0].value, found[1], rules)

    def keeps(self, found: tuple[Continued, Reached], rules: RulesAhead) -> bool:
        """Whether figures under rules keep every statement of the claim."""
        return not self.broken(found, rules)

    def cost(self, rules: RulesAhead, first: Int64Array | None) -> tuple[int, int | None]:
        """Returns `Change.waits_now` and `Change.first_noticed` of rules and a list [P]."""
        # Devices come no sooner than so far, also if a change would let them.
        changed_rules = rules.stricter(separation=self.usual.separation)
        (usual,), (changed,) = self.usual.future().rules, changed_rules.future().rules
        waits = self.waiting if first is None else np.maximum(self.waiting, first)
        waiting, noticed = 0, rules.rounds
        new = np.array([-1]), np.empty((1, 0), np.int64)
        counts = np.flatnonzero(np.bincount(self.patterns.counts)).tolist()
        known = ((e.places, e.rounds) for count in counts for e in self.patterns.with_count(count))
        for places, rounds in itertools.chain([new], known):
            is_new = places[0] < 0
            entries = usual.entries(rounds, None if is_new else self.waiting[places])
            later = changed.entries(rounds, None if is_new else waits[places])
            is_kept_away = later > entries
            waiting += int((is_kept_away & (entries <= rules.released)).sum())
            noticed = min(noticed, int(entries[is_kept_away].min(initial=noticed)))
            entries = np.where(is_kept_away, rules.rounds, entries)
            place = int(entries.argmin())
            past, entry = rounds[place].tolist(), int(entries[place])
            coming, allowed = (each.earliest(past, entry) for each in (usual, changed))
            allowed += [-1] * len(coming)
            differ = (at for at, other in zip(coming, allowed, strict=False) if at != other)
            noticed = min(noticed, next(differ, noticed))
        return waiting, None if noticed >= rules.rounds else noticed

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
    ahead: Ahead,
    rules: RulesAhead,
    claimed: RulesAhead,
    slowest_hours: float | None,
    unchecked: Sequence[str] = (),
) -> tuple[Change, ...]:
    """Returns the least change of each sort for a claim that is in danger: those that keep it
    first, in order of the devices that must wait now.

    If the limits of the claim are no rules yet, but keep it as rules, the other changes are those
    that keep it without them. Otherwise all other changes have them too.

    Args:
        ahead: the forward guarantee, with the claim.
        rules: the rules in force.
        claimed: these rules with the limits of the claim.
        slowest_hours: stated pace; None without one, when no timer can be advised.
        unchecked: statements that no rule to come can keep, as the trace cannot show them.
    """
    if unchecked:
        text = f"No change can help: the log cannot show whether {' and '.join(unchecked)} was kept"
        return (Change(("claimed limits",), False, text, breaks=tuple(unchecked)),)
    found = []
    if claimed is not rules:
        offer = _verified(ahead, claimed, Change(("claimed limits",), True, ""), None)
        found.append(offer)
        if offer.is_enough:
            found += [each for each in _others(ahead, rules, slowest_hours) if each.is_enough]
            return tuple(sorted(found, key=_cost_of))
    found += _others(ahead, claimed, slowest_hours)
    return tuple(sorted(found, key=_cost_of))


def _cost_of(change: Change) -> tuple[bool, bool, float, int, int]:
    is_costly = any(each in COSTLY for each in change.kinds)
    # A list is more work than a rule, and the later a device notices either, the better.
    noticed = -(change.first_noticed or NEVER)
    return not change.is_enough, is_costly, change.share_waiting or 0.0, len(change.kinds), noticed


def _others(ahead: Ahead, rules: RulesAhead, slowest_hours: float | None) -> Iterator[Change]:
    """Yields the changes besides the claimed limits, which the rules have."""
    endangered = some = ahead
    nobody = rules.stricter(most=0)
    is_late = rules.rounds > (ahead.promise.rounds or rules.rounds)
    if is_late or not ahead.keeps(ahead.under(nobody), nobody):
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
            # Devices that stay within the claim under the rules do so under stricter ones too, in
            # fewer rounds, and with more noise.
            endangered = ahead.only_of(first > 0)
            some = endangered.only_of(_longest(first[first > 0]))
            yield from _lists(ahead, rules, first, slowest_hours)
            yield from _rules(ahead, endangered, some, rules, slowest_hours)
    yield _last_round(ahead, endangered, some, rules)
    yield _noise(ahead, endangered, rules)


def _longest(first: Int64Array) -> BoolArray:
    """Returns whether each device [P] is among the few that must wait longest."""
    chosen = np.ones(first.size, np.bool_)
    if first.size > SOME:
        chosen[:] = False
        chosen[np.argpartition(first, -SOME)[-SOME:]] = True
    return chosen


def _lists(
    ahead: Ahead, rules: RulesAhead, first: Int64Array, slowest_hours: float | None
) -> Iterator[Change]:
    """Yields a list of devices that must wait, or each list with a rule for new devices."""
    if ahead.keeps(ahead.of_new(rules), rules):
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
    of_new = ahead.of_new
    for kind, ruled in _least_rules(of_new, of_new, ahead, rules, slowest_hours):
        first = who_waits(ahead.strategy, ahead.patterns, ahead.future(ruled), ahead.promise)
        found = True
        # Without a device on it, the list adds nothing to the rule, which has a row of its own.
        if first.any():
            yield _verified(ahead, ruled, Change(("list", kind), True, ""), first)
    if not found:
        text = "No list can help: one participation of a new device would exceed the claim"
        yield replace(none, text=text)


def _rules(
    ahead: Ahead,
    endangered: Ahead,
    some: Ahead,
    rules: RulesAhead,
    slowest_hours: float | None,
) -> Iterator[Change]:
    """Yields the least separation, cap and timer from now on without a list, given the devices that
    may exceed the claim, and some of them."""
    found = set()
    of = some.under, endangered.under
    for kind, ruled in _least_rules(*of, ahead, rules, slowest_hours):
        found.add(kind)
        yield _verified(ahead, ruled, Change((kind,), True, ""), None)
    kinds: tuple[Kind, ...] = ("separation", "cap")
    for kind in kinds:
        if kind in found:
            continue
        text = (
            f"No {kind} can help without a list: the released rounds of some devices cost too much"
        )
        yield Change((kind,), False, text)


Figures = Callable[[RulesAhead], tuple[Continued, Reached]]


def _least_rules(
    of_some: Figures,
    of_all: Figures,
    ahead: Ahead,
    rules: RulesAhead,
    slowest_hours: float | None,
) -> Iterator[tuple[Kind, RulesAhead]]:
    """Yields the rules with the least separation, with the largest cap, and with the shortest timer
    in whole hours that keep the claim for the devices of `of_all`; none of a kind that cannot. Some
    of these devices say where to search."""
    n = rules.rounds

    def least(low: int, high: int, ruled: Callable[[int], RulesAhead]) -> RulesAhead | None:
        def is_kept(of: Figures, number: int) -> bool:
            stricter = ruled(number)
            return ahead.keeps(of(stricter), stricter)

        found = _least_of_all(low, high, partial(is_kept, of_some), partial(is_kept, of_all))
        return None if found is None else ruled(found)

    # No device takes part twice at a separation of all rounds.
    found = least(rules.separation, n, lambda each: rules.stricter(separation=each))
    if found is not None:
        yield "separation", found
    now = of_all(rules)[1].max_participations
    found = least(0, now - 1, lambda each: rules.stricter(most=now - each))
    if found is not None:
        yield "cap", found
    if slowest_hours is not None and rules.times is not None:
        longest = math.ceil(slowest_hours * n)
        found = least(1, longest, lambda each: rules.stricter(timer_seconds=3600.0 * each))
        if found is not None:
            yield "timer", found


def _least_of_all(
    low: int, high: int, is_kept_by_some: Callable[[int], bool], is_kept: Callable[[int], bool]
) -> int | None:
    """Returns `_least` of `is_kept`, which implies `is_kept_by_some` and takes longer."""
    found = _least(low, high, is_kept_by_some)
    if found is None or is_kept(found):
        return found
    return _least(found + 1, high, is_kept)


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
    """Returns a change with its rules, figures, cost and words; it is enough if the forward
    guarantee under it keeps the claim."""
    found = ahead.under(rules, first)
    change = _with_figures(_with_rules(change, ahead, rules), ahead, found)
    broken = ahead.broken(found, rules)
    if broken:
        keys = " and ".join(broken)
        text = f"{_said(change, ahead, rules, first)}: not proven to keep {keys}"
        return replace(change, is_enough=False, text=text, breaks=broken)
    if first is not None:
        first = np.maximum(first, ahead.waiting)
        held = int((first > 0).sum())
        never = int((first >= rules.rounds).sum())
        share = held / max(1, first.size)
        change = replace(change, held=held, never=never, share_held=share, first=first)
    waiting, noticed = ahead.cost(rules, first)
    share = waiting / max(1, ahead.patterns.counts.size)
    change = replace(change, waits_now=waiting, share_waiting=share, first_noticed=noticed)
    return replace(change, text=_said(change, ahead, rules, first))


def _with_rules(change: Change, ahead: Ahead, rules: RulesAhead) -> Change:
    """Returns a change with the rules that it adds to those in force."""
    before = ahead.in_force
    has_separation = rules.separation > before.separation
    has_cap = rules.most is not None and rules.most != before.most
    has_timer = rules.timer_seconds > before.timer_seconds
    claim = ahead.promise.claim
    period = None if claim is None else claim.most_per_period
    has_period = period is not None and not before.keeps_period(period)
    return replace(
        change,
        separation=rules.separation if has_separation else None,
        max_participations=rules.most if has_cap else None,
        timer_hours=rules.timer_seconds / 3600.0 if has_timer else None,
        most_per_period=period if has_period else None,
    )


def _with_figures(change: Change, ahead: Ahead, found: tuple[Continued, Reached]) -> Change:
    return replace(
        change,
        sensitivity=found[0].value,
        epsilon=ahead.promise.epsilon_at(found[0].value),
        is_exact=found[0].is_exact,
        min_sep=found[1].min_sep,
        participations=found[1].max_participations,
    )


def _said(change: Change, ahead: Ahead, rules: RulesAhead, first: Int64Array | None) -> str:
    parts = []
    if change.max_participations is not None:
        most = counted(change.max_participations, "participation")
        parts.append(f"at most {most} of a device, past ones included")
    if change.separation is not None:
        parts.append(f"a separation of {counted(change.separation, 'round')}")
    if change.timer_hours is not None:
        rounds = rules.in_rounds(3600.0 * change.timer_hours)
        paced = "" if rounds is None else f" ({counted(rounds, 'round')} at the stated pace)"
        parts.append(f"a timer of {change.timer_hours:g} h{paced}")
    if change.most_per_period is not None:
        parts.append(f"at most {change.most_per_period.text}")
    if change.held is not None and first is not None:
        never = f", {change.never:,} of them for ever" if change.never else ""
        parts.append(f"a list of {counted(change.held, 'device')} that must wait{never}")
        if change.held == first.size and first.min() > rules.released:
            until = named(ahead.numbers, int(first.min()))
            parts.append(f"that is every known device, so until round {until} only new ones serve")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}"


def _last_round(ahead: Ahead, endangered: Ahead, some: Ahead, rules: RulesAhead) -> Change:
    """Returns the latest last round that keeps the claim without a further rule."""
    n, r = rules.rounds, rules.released

    def is_kept(by: Ahead, fewer: int) -> bool:
        earlier = rules.until(n - fewer)
        return ahead.keeps(by.under(earlier), earlier)

    fewer = _least_of_all(1, n - r, partial(is_kept, some), partial(is_kept, endangered))
    if fewer is None:
        text = "No last round can help: stop now, and nothing is kept"
        return Change(("last round",), False, text)
    last = n - fewer
    number = named(ahead.numbers, last - 1)
    shown = "" if number == last - 1 else f" (round {number})"
    text = f"Stop after {counted(last, 'round')}{shown}, {counted(last - r, 'round')} from now"
    change = Change(("last round",), True, "", last_round=last)
    change = _with_rules(change, ahead, rules)
    text = _besides(text, _said(change, ahead, rules, None))
    return _with_figures(replace(change, text=text), ahead, ahead.under(rules.until(last)))


def _besides(text: str, rules: str) -> str:
    return f"{text}; besides: {rules[:1].lower()}{rules[1:]}" if rules else text


def _noise(ahead: Ahead, endangered: Ahead, rules: RulesAhead) -> Change:
    """Returns the least factor of the noise from the next round on."""
    limits = reached(ahead.patterns, ahead.future(rules))
    kind: tuple[Kind, ...] = ("noise",)
    if isinstance(ahead.promise.noise, DeviceNoise):
        return Change(kind, False, "More noise is not judged if devices add it")
    broken = ahead.promise.broken(0.0, limits, rules)
    if ahead.promise.sensitivity is None or broken:
        keys = " and ".join(broken) or "rounds or participations"
        return Change(kind, False, f"More noise does not change {keys}", breaks=broken)

    limit, of = ahead.promise.sensitivity, (endangered.strategy, endangered.patterns)
    try:
        grown = least_noise_growth(*of, endangered.future(rules), limit)
    except (InputError, SensitivityUnknown) as error:
        return Change(kind, False, f"More noise from now on is not judged: {error}")
    if grown is None:
        text = "No noise from now on can help: the released rounds have spent the claim"
        return Change(kind, False, text)
    factor, found = grown
    change = Change(kind, True, "", noise_factor=factor)
    change = _with_rules(change, ahead, rules)
    text = f"{up(factor)} times the noise from the next round on"
    text = _besides(text, _said(change, ahead, rules, None))
    return _with_figures(replace(change, text=text), ahead, (found, limits))
