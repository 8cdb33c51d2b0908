"""The table `participation`: when a device may take part again."""

import collections
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedray.base.table import Share, Table

__all__ = [
    "DataAvailablePolicy",
    "MinSepPolicy",
    "Participation",
    "TimerPolicy",
    "WithoutReplacementPolicy",
]

Hours = Annotated[float, Field(ge=0, le=87_840)]


class PolicyTable(Table):
    """Base class of policy tables: facts that a policy needs from the shards, and the keys by which
    it holds devices back. A policy gets only the facts that its table declares."""

    implementation: ClassVar[str]
    """`module:name` of the policy: called with this table and the table `participation`, it returns
    a `ParticipationPolicy`."""

    @property
    def gap(self) -> int:
        """Least difference between the numbers of two rounds of a device; 0 for none."""
        return 0

    @property
    def wait_hours(self) -> float:
        """Hours of its own that it keeps two contributions of a device apart; 0 for none."""
        return 0.0

    @property
    def young_history_hours(self) -> float:
        """Hours that a device waits after its history began; 0 for none."""
        return 0.0

    @property
    def least_examples(self) -> int:
        """Examples that a device must have; 0 for none."""
        return 0

    @property
    def counts_uploads(self) -> bool:
        """Whether it counts contributions from the start of their upload."""
        return False

    @property
    def reads_clock(self) -> bool:
        """Whether devices wait by their own clocks."""
        return False

    @property
    def keys_by_rule(self) -> dict[str, str]:
        """The keys, with their values, that make devices wait ("time") or keep rounds apart
        ("rounds"), for messages."""
        return {}


class TimerPolicy(PolicyTable):
    """A device keeps away for `participation.timer_hours` after what `timer_resets_on` names."""

    kind: Literal["timer"] = "timer"
    """The timer of the table `participation`."""
    implementation: ClassVar[str] = "fedray.server.policies.timer:Timer.of"

    @property
    def reads_clock(self) -> bool:
        return True


class WithoutReplacementPolicy(PolicyTable):
    """Sampling without replacement, by the device's own history.

    A device is eligible if more than the period has passed since its last contribution (an upload
    that started and that the server did not abort, at its start), and since its history began. So
    a new install, or a device whose history was cleared, waits one whole period.
    """

    kind: Literal["swor"] = "swor"
    """Sampling without replacement."""
    implementation: ClassVar[str] = (
        "fedray.server.policies.without_replacement:WithoutReplacement.of"
    )
    period_hours: Annotated[float, Field(gt=0, le=87_840)]
    """The period, hours; exactly the period is not enough."""

    @property
    def wait_hours(self) -> float:
        return self.period_hours

    @property
    def young_history_hours(self) -> float:
        return self.period_hours

    @property
    def counts_uploads(self) -> bool:
        return True

    @property
    def reads_clock(self) -> bool:
        return True

    @property
    def keys_by_rule(self) -> dict[str, str]:
        return {"time": f"period_hours={self.period_hours:g} of participation.policies"}


class MinSepPolicy(PolicyTable):
    """Minimum separation in rounds, by the device's own history.

    The server sends the number of the round that is being formed. The device remembers the number
    of its last contribution (an upload that started and that the server did not abort). A device
    without history is eligible.
    """

    kind: Literal["min_sep"] = "min_sep"
    """Minimum separation."""
    implementation: ClassVar[str] = "fedray.server.policies.round_separation:RoundSeparation.of"
    minimum_separation: Annotated[int, Field(ge=0, lt=2**30)]
    """Distance between two rounds of a device, as `counts` says."""
    counts: Literal["between", "gap"]
    """Unit of the distance, since deployed clients differ: the rounds strictly between two rounds
    of a device, or the difference of their numbers."""
    trust_hours: Hours = 0.0
    """Hours that a device waits after its history began (a new install, or one that was cleared)
    before it is taken at its word; 0 for none."""

    @property
    def gap(self) -> int:
        # With n rounds strictly between them, the numbers of two rounds differ by n + 1.
        return self.minimum_separation + (1 if self.counts == "between" else 0)

    @property
    def young_history_hours(self) -> float:
        return self.trust_hours

    @property
    def counts_uploads(self) -> bool:
        return True

    @property
    def keys_by_rule(self) -> dict[str, str]:
        separation = f"minimum_separation={self.minimum_separation}"
        return {"rounds": f"{separation} of participation.policies"}


class DataAvailablePolicy(PolicyTable):
    """A device is eligible if it has enough examples."""

    kind: Literal["data_available"] = "data_available"
    """Enough examples."""
    implementation: ClassVar[str] = "fedray.server.policies.policy:remembers_nothing"
    min_example_count: Annotated[int, Field(ge=1, lt=2**31)]
    """Examples that a device must have."""

    @property
    def least_examples(self) -> int:
        return self.min_example_count


AnyPolicy = Annotated[
    TimerPolicy | WithoutReplacementPolicy | MinSepPolicy | DataAvailablePolicy,
    Field(discriminator="kind"),
]


class Participation(Table):
    """Rules by which a device may take part again."""

    policies: Annotated[tuple[AnyPolicy, ...], Field(strict=False)] | None = None
    """Policies, all of which must admit a device; each is a table with its `kind`. None: only the
    timer, `[{kind = "timer"}]`. `round_separation` and `max_participations` hold beside them."""
    timer_hours: Hours = 72.0
    """Hours that must pass before a device may be selected again; 0 for none."""
    round_separation: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Least difference between the numbers of two rounds of one device, which it remembers; 0 for
    none. It remembers rounds in which its report arrived in time."""
    timer_resets_on: Literal["accepted", "reported", "selected", "upload"] = "accepted"
    """Event that starts the timer: the device's report arrives in time; it reports at all (late
    included); it is selected; its upload starts, unless the server aborts it (a late upload is
    aborted, a lost one is not)."""
    max_participations: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Most contributions of a device, which counts its reports that arrived in time and never takes
    part again after that many; none: no cap. Those in rounds that were abandoned later count too,
    since the device cannot know. Devices that ignore the timer keep the cap."""
    history_loss_per_day: Annotated[float, Field(gt=0, le=24)] | None = None
    """Stress: mean number of times a day that a device forgets when and how often it took part;
    none: never."""
    history_loss: Literal["cleared", "corrupted"] | None = None
    """History of a device after that: it begins again (cleared, the default), so that policies
    which ask for its age make the device wait; or its beginning is unknown too (corrupted)."""
    timer_violators: Share = 0.0
    """Stress: share of devices that ignore the timer."""
    clock_skew_hours: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Stress: standard deviation of the error of a device's timer, hours (normal, the same in all
    rounds of a device)."""
    clock_changes_per_day: Annotated[float, Field(gt=0, le=24)] | None = None
    """Stress: mean number of times a day that the clock of a device is set to another time, so that
    a timer or a period that runs ends too early or too late; none: never. How long a history lasts
    is not affected."""
    clock_change_hours: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Standard deviation of the time by which it is set forward (or, if negative, back), hours
    (normal with mean 0); needed where clocks change."""

    @property
    def has_timer(self) -> bool:
        """Whether the timer is one of the policies."""
        return self.policies is None or any(each.kind == "timer" for each in self.policies)

    @property
    def timer_seconds(self) -> float:
        """Intended length of the timer in seconds; 0 without a timer."""
        return 3600.0 * self.timer_hours if self.has_timer else 0.0

    @property
    def wait_seconds(self) -> float:
        """Least time between two contributions of a device that keeps all policies, seconds; 0 for
        none."""
        hours = [self.timer_hours] if self.has_timer else []
        hours += [each.wait_hours for each in self.policies or ()]
        return 3600.0 * max(hours, default=0.0)

    @property
    def separation(self) -> int:
        """Least difference between the numbers of two rounds of a device; 0 for none."""
        # The 0 is there because `max` of a single number is an error.
        return max(self.round_separation, *(each.gap for each in self.policies or ()), 0)

    @property
    def keys_by_rule(self) -> dict[str, str]:
        """The keys, with their values, that make devices wait ("time") and keep rounds apart
        ("rounds"), for messages."""
        told = [each.keys_by_rule for each in self.policies or ()]
        time = [f"participation.timer_hours={self.timer_hours:g}"] if self.has_timer else []
        time += [keys["time"] for keys in told if "time" in keys]
        rounds = [keys["rounds"] for keys in told if "rounds" in keys]
        own = f"participation.round_separation={self.round_separation}"
        # No policy has `rounds` where round_separation is given, as both together are refused.
        return {"time": " and ".join(time), "rounds": " and ".join(rounds) or own}

    @property
    def young_history_seconds(self) -> float:
        """Seconds that a device waits after its history began; 0 if no policy asks for that."""
        hours = [each.young_history_hours for each in self.policies or ()]
        # All policies must admit a device, so the longest wait decides.
        return 3600.0 * max(hours, default=0.0)

    @property
    def min_example_count(self) -> int:
        """Examples that a device must have; 0 where no policy asks for any."""
        return max((each.least_examples for each in self.policies or ()), default=0)

    @property
    def counts_uploads(self) -> bool:
        """Whether some policy counts contributions from the start of their upload."""
        by_timer = self.has_timer and self.timer_resets_on == "upload"
        return by_timer or any(each.counts_uploads for each in self.policies or ())

    @property
    def reads_clock(self) -> bool:
        """Whether devices wait by their own clocks for some policy."""
        return self.policies is None or any(each.reads_clock for each in self.policies)

    @property
    def forgets_noticeably(self) -> bool:
        """Whether devices that forget know since when they have a history."""
        return self.history_loss_per_day is not None and self.history_loss != "corrupted"

    @model_validator(mode="after")
    def _policies_are_of_different_kinds(self) -> Self:
        kinds = collections.Counter(each.kind for each in self.policies or ())
        for kind, count in kinds.items():
            if count > 1:
                raise ValueError(
                    f"policies: {count} are of kind {kind!r}; all must admit a device, so keep "
                    "the strictest one"
                )
        # One counts reports that arrived, and the other uploads that started.
        if self.round_separation and kinds["min_sep"]:
            raise ValueError(
                f"round_separation={self.round_separation}: a device remembers one last round, "
                "and policies have a min_sep, which counts other rounds; keep one of the two"
            )
        return self

    @model_validator(mode="after")
    def _keys_have_what_they_speak_of(self) -> Self:
        for name in ("timer_hours", "timer_resets_on", "timer_violators", "clock_skew_hours"):
            value = getattr(self, name)
            # A recorded scenario has every key, so a default does not count as given.
            if not self.has_timer and value != type(self).model_fields[name].default:
                raise ValueError(
                    f'{name}={value}: policies have no timer; add {{kind = "timer"}} to them, '
                    f"or leave {name} out"
                )
        if (self.clock_changes_per_day is None) != (self.clock_change_hours is None):
            raise ValueError(
                f"clock_changes_per_day={self.clock_changes_per_day}, "
                f"clock_change_hours={self.clock_change_hours}: clocks change only where both are "
                "given; set both, or leave both out"
            )
        if self.clock_changes_per_day is not None and not self.reads_clock:
            raise ValueError(
                f"clock_changes_per_day={self.clock_changes_per_day:g}: no policy waits by a "
                "device's clock; add the kind timer or swor to policies, or leave it out"
            )
        if self.history_loss is not None and self.history_loss_per_day is None:
            raise ValueError(
                f"history_loss={self.history_loss!r}: no history is lost; set "
                "history_loss_per_day, or leave it out"
            )
        return self
