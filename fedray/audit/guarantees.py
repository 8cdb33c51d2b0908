"""Three guarantees of one run that are easily confused: observed, enforced, and claimed.

* The *observed* guarantee is the exact sensitivity of this trace. It is a statement about one run.
* The *enforced* guarantee holds for every pattern of participation under the rules in force, at the
  recorded times of the rounds. It stays true if participation depends on earlier released models.
* The *claimed* guarantee follows from a stated participation, whether or not rules ensure it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np

from fedray.audit.forward import Period, future_of, largest_permitted
from fedray.audit.members import are_members
from fedray.audit.noise import DeviceNoise, Noise, changed_rounds, most_changed, released
from fedray.audit.participation import Patterns
from fedray.audit.rules import ROUND_TIMES, Rule, are_periods_kept, rules_of, strictest
from fedray.audit.schedule import following_rounds
from fedray.audit.sensitivity import TraceSensitivity
from fedray.audit.waits import waits_between
from fedray.audit.zones import zone_hours_of
from fedray.base.arrays import Float64Array
from fedray.base.document import Document, InJson, Key, Keys, NotInJson
from fedray.base.rounding import counted, down, shown_min_sep
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.clip_count import with_counts
from fedray.mechanisms.accounting.events import Event, EventRefused, StrategyRelease
from fedray.mechanisms.accounting.gdp import mu_of
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.continuation import Future
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.mechanisms.strategy import Sensitivity, Strategy
from fedray.scenario import Scenario
from fedray.scenario.uploads import MinSepSchedule
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

SCOPES = {
    "observed": "this run as it happened, for the recorded rounds of each device",
    "enforced": "every run whose rounds ran at these times under these rules, whichever devices "
    "took part",
    "claimed": "every run with the participation that is claimed, whether or not it was enforced",
    "corrected": "every run with the participation of the claim, its broken limits replaced by "
    "those of the trace, whether or not it was enforced",
    "sampled": "every run whose rounds draw each stored upload with this probability, "
    "independently and in secret",
    "planned": "every run of these rules that stops by its models before or after all its planned "
    "rounds, whichever devices take part; at the recorded times, if the reason names them",
    "filtered": "every run in which the server excludes devices at their budget in this way, "
    "whichever devices take part",
    "without breakers": "this run as it might have been without the devices that break the claim",
}

OBSERVED_CANNOT_BE_RESTED_ON = (
    "it would hold only if no device's participation depended on the released models, which a "
    "trace cannot show"
)

OBSERVED_LIMITS = "observed limits"
"""Name of the guarantee that follows from the min-sep and participations of a trace."""
REPEATED = (
    "a device contributed more than once to one round, and (min-sep, participations) figures "
    "assume at most once; if such rows record one contribution, import with repeats 'once'"
)
"""Reason why a trace in which a device repeats a round has no proven limits; its own sensitivity is
exact all the same."""


class ClaimedPeriods(NamedTuple):
    """A claimed limit of a log on participations within a period."""

    text: str
    """The limit in words."""
    zones: Sequence[tuple[Period, ...]]
    """The limit for the devices of each time zone; empty if the log does not show that it was
    kept."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Participation that a set of rules allows: (min-sep, max participations), with a reason."""

    participation: MinSep | None
    """None if the rules are unknown."""
    reason: str
    """Reason why it holds, or why it is None; one sentence."""
    assumptions: tuple[str, ...] = ()
    """Assumptions behind it."""
    pairs: tuple[MinSep, ...] = ()
    """Frontier within the participation: each device keeps at least one of them; empty if all keep
    one participation."""
    rules: Future | None = None
    """Rules of the same rounds that devices keep beside the participation; None if the
    participation says all that is known."""


@dataclass(frozen=True, slots=True)
class Guarantee(Document):
    """A guarantee for one mechanism: one of the three, or that of Poisson sampling or of a
    filter."""

    name: str
    """"observed", "enforced", "claimed", "corrected", "sampled", "filtered" or "planned"; `scope`
    states the subject of each."""
    participation: Annotated[MinSep | None, Keys("rounds max_participations")]
    """(b, k); for the observed guarantee, the one that the trace obeys."""
    sensitivity: Annotated[Sensitivity | None, Keys("sensitivity=value is_exact theorem")]
    """Sensitivity at clip norm 1; None if unknown, with the reason in `reason`."""
    event: NotInJson[Event | None]
    """The release, for the accountants; None if the sensitivity or the noise is unknown. Then mu,
    rho and epsilon are None."""
    delta: float
    """delta of the epsilon."""
    may_rest_on: bool
    """Whether a DP guarantee may rest on it even if participation depends on released models."""
    reason: str
    """Reason why it holds, or why it is unknown, as a sentence."""
    assumptions: tuple[str, ...] = ()
    """Assumptions behind the guarantee, in sentences."""
    pairs: NotInJson[tuple[MinSep, ...]] = ()
    """Pairs of which each device keeps one; then no single participation describes it."""

    @property
    def is_known(self) -> InJson[bool]:
        """Whether the sensitivity is known."""
        return self.sensitivity is not None

    @property
    def limits(self) -> str:
        """The participation in words, or the reason why none is known."""
        if self.pairs:
            pairs = shown_pairs(self.frontier)
            return f"for each device one pair (min-sep, participations) of {pairs}"
        return self.reason if self.participation is None else described(self.participation)

    @property
    def frontier(self) -> Annotated[tuple[tuple[int, int], ...], Key("pairs")]:
        """Pairs of min-sep and participations of which each device keeps one; empty without."""
        return tuple((each.min_sep, each.max_participations) for each in self.pairs)

    @property
    def scope(self) -> InJson[str]:
        """Subject of the figures, in words."""
        return SCOPES[self.name]

    @property
    def mu(self) -> InJson[float | None]:
        """mu of Gaussian DP: sensitivity / noise multiplier; also None for noise that is not
        Gaussian."""
        try:
            return None if self.event is None else mu_of(self.event)
        except EventRefused:
            return None

    @property
    def rho(self) -> InJson[float | None]:
        """rho of zCDP: mu^2 / 2; also None for sampled events, for which no zCDP is proven."""
        try:
            return None if self.event is None else rho_of(self.event)
        except EventRefused:
            return None

    @property
    def epsilon(self) -> InJson[float | None]:
        """epsilon at delta, by the first accountant that takes the event."""
        return None if self.event is None else epsilon_of(self.event, self.delta).epsilon

    @property
    def min_sep(self) -> InJson[int | None]:
        """b; None if no device takes part twice (k = 1), or if unknown."""
        participation = self.participation
        return (
            None
            if participation is None or participation.max_participations == 1
            else participation.min_sep
        )

    def withdrawn(self, reason: str) -> "Guarantee":
        """Returns the guarantee without its figures, and the reason why nothing is known."""
        return replace(self, sensitivity=None, event=None, may_rest_on=False, reason=reason)


def strongest(guarantees: Iterable[Guarantee]) -> Guarantee | None:
    """Returns the guarantee with the least epsilon that may be rested on; None without one."""
    known = [each for each in guarantees if each.may_rest_on and each.epsilon is not None]
    return min(known, key=lambda each: each.epsilon or 0.0, default=None)


def observed(
    found: TraceSensitivity,
    patterns: Patterns,
    strategy: Strategy,
    noise: Noise | None,
    delta: float,
    unit: str = "device",
) -> Guarantee:
    """Returns the guarantee of the trace itself.

    Args:
        found: sensitivity of the trace.
        patterns: rounds of every unit.
        strategy: the mechanism.
        noise: noise of the run; None if unknown.
        delta: delta of epsilon.
        unit: unit of privacy whose rounds were recorded.
    """
    pattern = found.rounds
    changed = 1 if noise is None else int(changed_rounds(noise, patterns).max())
    scaled = ", each contribution scaled by the weight of its staleness" if found.weights else ""
    sensitivity = Sensitivity(
        found.value,
        found.is_exact,
        f"the largest sensitivity of any recorded {unit}'s own rounds{scaled}",
        # An upper bound says nothing about how small the sensitivity may be.
        found.value if found.is_exact else 0.0,
        pattern,
    )
    return Guarantee(
        "observed",
        patterns.participation,
        sensitivity,
        # The sensitivity belongs to one pattern, so the event has no participation. The pattern is
        # taken as fixed: if it followed from earlier models, neighbouring data could lead to
        # another one, of which this figure says nothing. So no guarantee may rest on it.
        event_of(strategy, patterns.committed_rounds, sensitivity, None, noise, changed),
        delta,
        False,
        OBSERVED_CANNOT_BE_RESTED_ON,
    )


def of_limits(
    name: str,
    limits: Limits,
    strategy: Strategy,
    noise: Noise | None,
    delta: float,
    may_rest_on: bool,
) -> Guarantee:
    """Returns the guarantee for every pattern that some limits allow.

    Args:
        name: name of the guarantee; see `Guarantee`.
        limits: the allowed participation, with its reason.
        strategy: the mechanism.
        noise: noise of the run; None if unknown.
        delta: delta of epsilon.
        may_rest_on: whether a DP guarantee may rest on it if the sensitivity is known.
    """
    sensitivity, event, reason = None, None, limits.reason
    participation = limits.participation
    if participation is not None:
        try:
            # A mechanism of fewer rounds raises too, and the reason says so.
            strategy.check_rounds(participation.rounds)
            # The largest over all patterns of (b, k), so no pattern that earlier models lead a
            # device into has a larger one. Contributions may be adaptive as well (Denisov et al.
            # 2022, Theorem 2.1).
            under = [
                strategy.participation_sensitivity(each)
                if limits.rules is None
                else largest_permitted(strategy, limits.rules, each)
                for each in limits.pairs or (participation,)
            ]
            # Each allowed pattern lies under a pair, and every pattern under a pair is allowed.
            attained = max(under, key=lambda each: each.lower_bound)
            sensitivity = replace(
                max(under, key=lambda each: each.value),
                lower_bound=attained.lower_bound,
                worst_pattern=attained.worst_pattern,
            )
            changed = 1 if noise is None else most_changed(noise, limits.pairs or (participation,))
            rounds, participation = participation.rounds, None if limits.pairs else participation
            # Under rules, the sensitivity need not cover all patterns of the participation.
            covered = participation if limits.rules is None else None
            event = event_of(strategy, rounds, sensitivity, covered, noise, changed)
        except ValueError as error:  # unproven
            reason = f"{limits.reason}; {error}"
    return Guarantee(
        name,
        participation,
        sensitivity,
        event,
        delta,
        may_rest_on and sensitivity is not None,
        reason,
        limits.assumptions,
        limits.pairs,
    )


def event_of(
    strategy: Strategy,
    rounds: int,
    sensitivity: Sensitivity,
    participation: MinSep | None,
    noise: Noise | None,
    changed: int,
) -> Event | None:
    """Returns the release of the rounds, or None if the noise is unknown.

    Args:
        strategy: the mechanism.
        rounds: number of released rounds.
        sensitivity: sensitivity to account for.
        participation: participation that the sensitivity covers; None if it covers fewer patterns
            than one.
        noise: noise of the run.
        changed: largest number of rounds whose sums a device changes, for noise of devices.
    """
    if noise is None:
        return None
    if isinstance(noise, DeviceNoise):
        return released(noise, sensitivity.value, changed)
    release = StrategyRelease(
        strategy=strategy,
        rounds=rounds,
        noise_multiplier=noise.multiplier,
        sensitivity=sensitivity,
        participation=participation,
    )
    return release if noise.count_noise is None else with_counts(release, noise.count_noise)


def enforced_limits(
    trace: Trace | ImportedTrace,
    scenario: Scenario | None,
    claimed_timer_hours: float | None,
    patterns: Patterns,
    claimed_periods: ClaimedPeriods | None = None,
) -> Limits:
    """Returns the limits of the rules in force, at the recorded times of the rounds.

    A simulated trace has the rules in its scenario. A log has none; if it has times, a claimed
    timer or limit within periods is taken as enforced, and the result says so. A rule that a device
    of the trace broke ensures nothing. Whether a guarantee may rest on the limits is decided later
    too: not for a log, for noise that was not added, or for more rounds than recorded
    (`auditing.py`).
    """
    if isinstance(trace, ImportedTrace):
        limits = _limits_of_log(trace, claimed_timer_hours, patterns, claimed_periods)
    else:
        assert scenario is not None
        # An abandoned attempt released nothing and is not a round: it has no row of C, and its
        # devices added to no sum. Its existence may be visible, but when devices take part is not
        # protected in any case.
        is_committed = trace.rounds["state"] == 0
        columns = (trace.rounds[name][is_committed] for name in ("opened", "started", "closed"))
        limits = limits_at(scenario, *columns)
        if not are_periods_kept(trace, scenario):
            return Limits(
                None,
                "devices of this trace took part more often within a period than the rules allow, "
                "so the rules were not kept",
            )
        held_out = int((~are_members(scenario, patterns.device_ids)).sum())
        if held_out:
            return Limits(
                None,
                f"{counted(held_out, 'device')} of this trace took part although held out "
                "(participation.members), so the rules were not kept",
            )
    participation = limits.participation
    if participation is None or _is_kept(participation, patterns):
        return limits
    # No limits cover a repeated round, which deserves a reason of its own.
    if patterns.min_sep == 0:
        return Limits(None, REPEATED)
    return Limits(
        None,
        "devices of this trace took part more often, or closer together, than the rules allow "
        f"(min-sep {patterns.min_sep:,} for {participation.min_sep:,}, "
        f"{counted(patterns.max_participations, 'participation')} for "
        f"{participation.max_participations:,}), so the rules were not kept",
    )


def limits_at(
    scenario: Scenario,
    opened: Float64Array,
    started: Float64Array,
    closed: Float64Array,
) -> Limits:
    """Returns the limits of a scenario's rules at the times of its rounds, if all devices keep the
    rules.

    Args:
        scenario: scenario of the run, with its rules.
        opened, started, closed: times of its committed rounds so far [n], seconds since start, as
            in `RoundRecord`; n > 0.
    """
    if scenario.rounds.uploads is not None:
        return _limits_of_uploads(scenario, opened)
    return _limits_of_run(scenario, opened, started, closed)


def limits_of_schedule(scenario: Scenario, rounds: int) -> Limits:
    """Returns the limits in a number of rounds that draw stored uploads, whose windows end at known
    times."""
    uploads = scenario.rounds.uploads
    assert uploads is not None
    ends = uploads.seconds * np.arange(1, uploads.windows + 1, dtype=np.float64)
    return _limits_of_uploads(scenario, np.repeat(ends, uploads.rounds_of_windows(rounds)))


def _is_kept(participation: MinSep, patterns: Patterns) -> bool:
    return (
        patterns.min_sep >= participation.min_sep
        and patterns.max_participations <= participation.max_participations
    )


def allowed(
    earliest: Float64Array,
    latest: Float64Array,
    timer_seconds: float,
    round_separation: int = 0,
    most: int | None = None,
) -> MinSep:
    """Returns the tightest (b, k) that a timer, a separation in rounds and a cap on participations
    ensure.

    A device that takes part in round r starts its timer at `earliest[r]` [n seconds] or later. It
    takes part in round s at `latest[s]` [n seconds] or before, and only once the timer has run out.
    So s may follow r only if `latest[s] >= earliest[r] + timer_seconds` and `s >= r +
    round_separation`. Rounds of a log may overlap, and a device may be in a later round first, so
    the timer of every later round counts too.
    """
    return tightest(future_of(earliest, latest, timer_seconds, round_separation, most))


def tightest(rules: Future) -> MinSep:
    """Returns the tightest (b, k) that contains all patterns of the devices of any zone under rules
    in recorded rounds.

    The least difference between a round and the first one that may follow it is b. Returning as
    early as permitted gives the longest pattern, k: of any other pattern, each round comes no
    earlier. It is at most floor(duration / timer) + 1.
    """
    n = rules.rounds
    rounds = np.arange(n)
    b, k = n, 1
    for each in rules.rules:
        following = each.barred[0, :n]
        # If no device may return, b is n: no two rounds are further apart.
        b = int((following - rounds)[following < n].min(initial=b))
        k = max(k, len(each.earliest(())))
    return fitting(n, b, k)


def _limits_of_run(
    scenario: Scenario,
    opened: Float64Array,
    started: Float64Array,
    closed: Float64Array,
) -> Limits:
    given, n = scenario.participation, opened.size
    in_force = rules_of(given)
    rules = [rule for rule in in_force if not rule.unkept]
    # Only a rule that all devices keep ensures anything; these rules concern times.
    waiting = [rule for rule in rules if rule.seconds]
    # If rounds select together, a device checks in before the start and reports after it.
    times = started, started
    if scenario.rounds.buffer is not None:
        # A timer that starts before the report may start as early as a device of the round does:
        # when the buffer of max_staleness rounds before opened.
        is_from_report = all(rule.is_from_report for rule in waiting)
        staleness = 0 if is_from_report else scenario.rounds.max_staleness
        times = opened[np.maximum(np.arange(n) - staleness, 0)], closed
    permitted = future_of(*times, *strictest(rules), _periods_of(rules, scenario))
    assumptions = [
        "The times of the rounds are as recorded, and do not depend on what a single device holds."
    ]
    named = "; ".join(rule.name for rule in rules)
    if rules:
        assumptions.append(f"Every device kept the rules: {named}.")
    reasons = [
        f"{rule.name} ensures nothing, since {rule.unkept}" for rule in in_force if rule.unkept
    ]
    if rules:
        reasons.append(f"it follows from {named}")
    else:
        reasons.append(
            "no rule that ensures anything was in force, so a device might have taken part in "
            f"each of the {n:,} rounds"
        )
    return Limits(
        tightest(permitted),
        "; ".join(reasons),
        tuple(assumptions),
        rules=permitted if permitted.windows else None,
    )


def _periods_of(rules: Sequence[Rule], scenario: Scenario) -> list[tuple[Period, ...]]:
    """Returns the periods of some rules for the devices of each time zone; one entry if zones do
    not matter."""
    limiting = [rule for rule in rules if rule.most_within]
    zones = zone_hours_of(scenario) if any(rule.is_local_day for rule in limiting) else [0.0]
    return [
        tuple(Period(rule.most_within, rule.within_seconds, 3600.0 * hours) for rule in limiting)
        for hours in zones
    ]


def _limits_of_uploads(scenario: Scenario, opened: Float64Array) -> Limits:
    """Returns the limits of the schedule within a window, joined with the rules between windows."""
    uploads = scenario.rounds.uploads
    assert uploads is not None
    # A plain Poisson sample may draw an upload in every round of its window.
    min_sep = uploads.groups
    in_force = rules_of(scenario.participation)
    rules = [rule for rule in in_force if not rule.unkept]
    seconds, _, most = strictest(rules)
    following = following_rounds(opened, uploads.seconds, seconds, min_sep, uploads.keeps_groups)
    if most is not None:
        # The fullest window counts, because the cap must hold in each.
        rounds_of_window = int(np.unique(opened, return_counts=True)[1].max(initial=0))
        # A cap counts uploads, and an upload takes part at most in every min_sep-th round of its
        # window.
        most *= most_of_device(rounds_of_window, min_sep)
    member = "device" if uploads.keeps_groups else "upload"
    reason = (
        "an upload takes part in the one round of its window"
        if uploads.takes_all
        else "the schedule lets an upload take part in every round of its window"
        if min_sep == 1
        else f"the schedule keeps two rounds of an upload {min_sep:,} or more apart"
        if isinstance(uploads.schedule, MinSepSchedule)
        else f"each {member} is in one of {min_sep:,} groups that have their turn one after the "
        "other"
    )
    windows = np.unique(opened).size
    # Rules about times use the times of windows here.
    named = "; ".join(rule.name.removesuffix(ROUND_TIMES) for rule in rules)
    # In a single window a device uploads once, so rules between windows do not matter.
    if windows > 1:
        kept = named or "no rule that ensures anything"
        reason += f", and between {windows:,} upload windows devices keep {kept}"
    kept_by_all = f"Every device kept the rules: {named}."
    assumptions = (kept_by_all,) if rules and windows > 1 else ()
    permitted = Future(0, opened.size, following, most)
    return Limits(tightest(permitted), reason, assumptions)


def _limits_of_log(
    trace: ImportedTrace,
    timer: float | None,
    patterns: Patterns,
    periods: ClaimedPeriods | None,
) -> Limits:
    # A timer of 0 h limits nothing.
    if not timer and periods is None:
        return Limits(
            None, "the log does not say which rules were in force; a claim may name a timer"
        )
    rule = "a timer" if timer else "a limit within a period"
    times, waits = round_times(trace), waits_between(trace, patterns)
    if times is None or waits is None:
        return Limits(
            None,
            f"{rule} says nothing about rounds unless the times of the rounds are known; import "
            "the log with its times",
        )
    # A claimed rule that the log contradicts would give limits that the trace breaks.
    least = min((float(seconds.min(initial=math.inf)) for seconds, _, _ in waits), default=math.inf)
    if timer and least < 3600.0 * timer:
        return Limits(
            None,
            f"the claimed timer of {timer:g} h was not kept: a device came back "
            f"{down(least / 3600.0)} h later",
        )
    if periods is not None and not periods.zones:
        return Limits(None, f"the claimed limit of {periods.text} was not kept")
    zones = [()] if periods is None else periods.zones
    # A time that is rounded up may belong to the day before.
    earliest = times[0] if periods is None else times[0] - trace.time_step
    seconds = 3600.0 * (timer or 0.0)
    permitted = future_of(earliest, times[1], seconds, zones=zones)
    named = [f"timer of {timer:g} h"] if timer else []
    named += [f"limit of {periods.text}"] if periods is not None else []
    rules = " and the claimed ".join(named)
    return Limits(
        tightest(permitted),
        f"it follows from the claimed {rules} and the recorded times of the rounds",
        (
            f"Every device kept the claimed {rules}. The log cannot show what was enforced.",
            "No participation in a round came before the first or after the last time that is "
            "recorded of that round.",
        ),
        rules=permitted if permitted.windows else None,
    )


def round_times(
    trace: Trace | ImportedTrace,
) -> tuple[Float64Array, Float64Array] | None:
    """Returns the earliest and latest time of a participation in each round, [n seconds] each, in
    the form that `allowed` takes; None if unknown.

    For a simulated trace both are the time at which the round started: a device checks in before it
    and reports after it. For a buffered round the earliest is the time at which the buffer opened,
    before any report in it, and the latest is the time at which it was full, after every check-in.
    A round that draws stored uploads has no such times, because one upload takes part in several
    rounds.
    """
    if isinstance(trace, ImportedTrace):
        times = trace.round_times()
        # Rounded times may be a step closer than the true ones.
        return None if times is None else (times[0], times[1] + trace.time_step)
    if trace.stores_uploads:
        return None
    is_committed = trace.rounds["state"] == 0
    if trace.is_buffered:
        return trace.rounds["opened"][is_committed], trace.rounds["closed"][is_committed]
    started = trace.rounds["started"][is_committed]
    return started, started


def fitting(rounds: int, min_sep: int, most: int) -> MinSep:
    """Returns the participation with the largest number of participations that fits, at most
    `most`."""
    k = min(most, most_of_device(rounds, min_sep))
    # A single participation obeys any separation.
    return MinSep(rounds, rounds if k == 1 else min_sep, k)


def described(participation: MinSep) -> str:
    """Returns a participation in words."""
    if participation.max_participations == 1:
        return "each device at most once"
    return (
        f"min-sep {shown_min_sep(participation.min_sep)} and at most "
        f"{counted(participation.max_participations, 'participation')}"
    )


def shown_pairs(pairs: Sequence[tuple[int, int]]) -> str:
    """Returns the pairs of a frontier as a claim has them."""
    return f"[{', '.join(f'[{b}, {k}]' for b, k in pairs)}]"


def true_positive_rate(mu: float, false_positive_rate: float = 1e-3) -> float:
    """Returns the best power of any test for a device at a false-positive rate: Phi(mu - Phi^-1(1 -
    rate)).

    Dong, Roth and Su 2022 (Gaussian Differential Privacy), section 2: no test has more.
    """
    from scipy.special import ndtr, ndtri

    # The power of the Neyman-Pearson test of N(0, 1) against N(mu, 1). It is rounded up, so that no
    # test is better than stated.
    return min(1.0, math.nextafter(float(ndtr(mu + ndtri(false_positive_rate))), 1.0))
