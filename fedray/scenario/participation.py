"""The table `participation`: when a device may take part again."""

import collections
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedray.base.table import Share, Table
from fedray.scenario.content import ContentFile

if TYPE_CHECKING:  # it loads pyarrow, which few scenarios need
    from fedray.scenario.hold import HeldDevices

__all__ = [
    "DataAvailablePolicy",
    "HoldFile",
    "LaterRules",
    "MinSepPolicy",
    "MostPerPeriodPolicy",
    "Participation",
    "TimerPolicy",
    "WithoutReplacementPolicy",
]

Hours = Annotated[float, Field(ge=0, le=87_840)]


class PolicyTable(Table):
    """Base class of policy tables. A table declares the facts that its policy needs from the
    shards, and they report only these."""

    implementation: ClassVar[str]
    """`module:name` of the policy: called with this table and its scenario, it returns a
    `ParticipationPolicy`. Facts of devices, such as time zones, follow from the scenario by
    functions of `fedray/wire/`."""
    counts_uploads: ClassVar[bool] = False
    """Whether the policy counts contributions from the start of their upload."""

    @property
    def gap(self) -> int:
        """Smallest difference between the numbers of two rounds of a device; 0 for none."""
        return 0

    @property
    def wait_hours(self) -> float:
        """Hours by which the policy itself separates two contributions of a device; 0 for none."""
        return 0.0

    @property
    def longest_wait_hours(self) -> float:
        """Longest time for which the policy keeps a device away, hours; 0 for none."""
        return self.wait_hours

    def most_contributions(self, seconds: float) -> int | None:
        """Returns an upper bound on the contributions of a device in a time that the policy sets
        besides its waits; None for none."""
        del seconds
        return None

    @property
    def young_history_hours(self) -> float:
        """Hours that a device must wait after its history began; 0 for none."""
        return 0.0

    @property
    def least_examples(self) -> int:
        """Number of examples that a device must have; 0 for none."""
        return 0

    @property
    def keys_by_rule(self) -> dict[str, str]:
        """Keys with their values, for messages: "time" makes devices wait, "rounds" keeps rounds
        apart."""
        return {}


class TimerPolicy(PolicyTable):
    """A device stays away for `participation.timer_hours` after the event in `timer_resets_on`."""

    kind: Literal["timer"] = "timer"
    """The timer of the table `participation`."""
    implementation: ClassVar[str] = "fedray.server.policies.timer:Timer.of"


class WithoutReplacementPolicy(PolicyTable):
    """Sampling without replacement, by the device's own history.

    A device is eligible if more than the period has passed since the start of its last contribution
    (an upload that started and that the server did not abort), and since its history began. So a
    new install, or a device whose history was cleared, waits a whole period.
    """

    kind: Literal["swor"] = "swor"
    """Sampling without replacement."""
    implementation: ClassVar[str] = (
        "fedray.server.policies.without_replacement:WithoutReplacement.of"
    )
    counts_uploads: ClassVar[bool] = True
    period_hours: Annotated[float, Field(gt=0, le=87_840)]
    """Length of the period, hours; a device must wait longer than this."""

    @property
    def wait_hours(self) -> float:
        return self.period_hours

    @property
    def young_history_hours(self) -> float:
        return self.period_hours

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
    counts_uploads: ClassVar[bool] = True
    minimum_separation: Annotated[int, Field(ge=0, lt=2**30)]
    """Distance between two rounds of a device, in the unit of `counts`."""
    counts: Literal["between", "gap"]
    """Unit of the distance, in which deployed clients differ: "between" counts the rounds strictly
    between two rounds of a device, "gap" is the difference of their numbers."""
    trust_hours: Hours = 0.0
    """Hours that a device must wait after its history began (it is a new install, or its history
    was cleared) before the history is trusted; 0 for none."""

    @property
    def gap(self) -> int:
        # The numbers of two rounds with n rounds strictly between them differ by n + 1.
        return self.minimum_separation + (1 if self.counts == "between" else 0)

    @property
    def young_history_hours(self) -> float:
        return self.trust_hours

    @property
    def keys_by_rule(self) -> dict[str, str]:
        separation = f"minimum_separation={self.minimum_separation}"
        return {"rounds": f"{separation} of participation.policies"}


def check_one_period(hours: float | None, period: str | None) -> None:
    """Raises ValueError unless a limit within a period has either hours or a kind of period."""
    if (hours is None) == (period is None):
        raise ValueError(
            "most_per_period needs either hours or period='local_day'; give one of the two"
        )


class MostPerPeriodPolicy(PolicyTable):
    """A device takes part at most so often within some hours, or on a calendar day of its own.

    A participation is a report that arrived in time, and its time is the start of its round by the
    server's clock. Either `hours` or `period` is given.
    """

    kind: Literal["most_per_period"] = "most_per_period"
    """A largest number of participations within a period."""
    implementation: ClassVar[str] = "fedray.server.policies.most_per_period:MostPerPeriod.of"
    participations: Annotated[int, Field(ge=1, le=10_000)]
    """Largest number of participations of a device within a period."""
    hours: Annotated[float, Field(gt=0, le=87_840)] | None = None
    """Length of the period, hours: less than that lies between the first and the last of too many
    participations, whenever the period begins."""
    period: Literal["local_day"] | None = None
    """"local_day": the periods are the calendar days in the device's time zone. Days are no
    windows: twice as many participations fit around a midnight."""

    @property
    def wait_hours(self) -> float:
        # A single participation in a window separates any two.
        return self.hours or 0.0 if self.participations == 1 else 0.0

    @property
    def longest_wait_hours(self) -> float:
        return self.hours or 24.0

    def most_contributions(self, seconds: float) -> int:
        # A time of d days touches d + 1 calendar days, and parts of days one more.
        periods = (
            seconds // 86_400.0 + 2 if self.hours is None else seconds // (3600 * self.hours) + 1
        )
        return int(min(self.participations * periods, 2.0**62))

    @property
    def keys_by_rule(self) -> dict[str, str]:
        period = "local day" if self.hours is None else f"{self.hours:g} h"
        return {
            "time": f"participations={self.participations} per {period} of participation.policies"
        }

    @model_validator(mode="after")
    def _has_one_period(self) -> Self:
        check_one_period(self.hours, self.period)
        return self


class DataAvailablePolicy(PolicyTable):
    """A device is eligible if it has enough examples."""

    kind: Literal["data_available"] = "data_available"
    """A minimum number of examples."""
    implementation: ClassVar[str] = "fedray.server.policies.policy:remembers_nothing"
    min_example_count: Annotated[int, Field(ge=1, lt=2**31)]
    """Number of examples that a device must have."""

    @property
    def least_examples(self) -> int:
        return self.min_example_count


AnyPolicy = Annotated[
    TimerPolicy
    | WithoutReplacementPolicy
    | MinSepPolicy
    | MostPerPeriodPolicy
    | DataAvailablePolicy,
    Field(discriminator="kind"),
]


class HoldFile(ContentFile):
    """A hold file: devices that must wait before they may take part again."""

    suffix: ClassVar[str] = ".csv"
    most_bytes: ClassVar[int] = 1 << 30

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return {"file": given} if isinstance(given, str) else given

    def _canonical(self, path: Path) -> bytes:
        from fedray.scenario.hold import canonical_hold

        return canonical_hold(self._read_file(path), self.file)

    @property
    def devices(self) -> "HeldDevices":
        """The devices of the file."""
        from fedray.scenario.hold import parsed_devices

        return parsed_devices(self.content, self.file)


class LaterRules(Table):
    """Rules that hold from the round `participation.from_round` on, besides the others. They count
    participations in earlier rounds too."""

    timer_hours: Annotated[float, Field(gt=0, le=87_840)] | None = None
    """Longer timer than `participation.timer_hours`. Default: the same."""
    round_separation: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Larger separation than `participation.round_separation`. Default: the same."""
    max_participations: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Cap on the contributions of a device, as `participation.max_participations`; a device that
    has reached it takes part in no later round. Default: the same."""


EVERYBODY = (0.0, 1.0)
"""Members if any device may serve."""


class Participation(Table):
    """Rules by which a device may take part again."""

    policies: Annotated[tuple[AnyPolicy, ...], Field(strict=False)] | None = None
    """Policies, all of which must admit a device; each is a table with a `kind`. Default: only the
    timer, `[{kind = "timer"}]`. `round_separation` and `max_participations` apply in addition."""
    timer_hours: Hours = 72.0
    """Hours that must pass before a device may be selected again; 0 for none."""
    round_separation: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Smallest difference between the numbers of two rounds of a device; 0 for none. The device
    remembers the last round in which its report arrived in time."""
    timer_resets_on: Literal["accepted", "reported", "selected", "upload"] = "accepted"
    """Event that starts the timer. "accepted": the device's report arrives in time. "reported": it
    reports, in time or late. "selected": it is selected. "upload": its upload starts and the server
    does not abort it (a late upload is aborted, a lost one is not)."""
    max_participations: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Largest number of contributions of a device, which counts its reports that arrived in time
    and then never takes part again. Reports in rounds that were abandoned later count too, because
    the device does not know. Devices that ignore the timer respect the cap. Default: no cap."""
    history_loss_per_day: Annotated[float, Field(gt=0, le=24)] | None = None
    """Stress: mean number of times per day that a device forgets when and how often it took part.
        Default: never."""
    history_loss: Literal["cleared", "corrupted"] | None = None
    """History of a device after a loss. "cleared" (the default): it begins again, so policies that
    depend on its age make the device wait. "corrupted": the device does not know when it began."""
    members: Annotated[
        tuple[Share, Share],
        # Left out at its default, so that scenarios without the key keep their digest.
        Field(strict=False, exclude_if=lambda members: members == EVERYBODY),
    ] = (0.0, 1.0)
    """Devices that may ever serve: those whose uniform draw from [0, 1) is from the first number to
    below the second. Every task has the same draw of a device, so [0.05, 1] holds the devices of
    [0, 0.05] out."""
    hold: HoldFile | None = None
    """CSV or Parquet file of devices that must wait, by columns `device_id` and `first_round` or
    `first_time` (seconds since start). A device takes part in no earlier round, and in none that
    starts before that time; if the value is empty, it never takes part. Default: no device
    waits."""
    from_round: Annotated[int, Field(ge=0, lt=2**31, exclude_if=lambda number: number == 0)] = 0
    """First round to which `hold` and `later` apply. Rounds before it are those of the scenario
    without the two, so a run is continued with new rules by naming its next round here."""
    later: LaterRules | None = None
    """Stricter rules from the round `from_round` on. Default: the rules never change."""
    timer_violators: Share = 0.0
    """Stress: share of devices that ignore the timer."""
    clock_skew_hours: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Stress: standard deviation of the error of a device's timer, hours (normal, and constant for
        each device)."""

    @property
    def member_share(self) -> float:
        """Expected share of the devices that may serve."""
        return self.members[1] - self.members[0]

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
        """Shortest time between two contributions of a device that follows all policies, seconds; 0
        for none."""
        hours = [self.timer_hours] if self.has_timer else []
        hours += [each.wait_hours for each in self.policies or ()]
        # All policies must admit a device, so the longest wait decides.
        return 3600.0 * max(hours, default=0.0)

    @property
    def longest_wait_seconds(self) -> float:
        """Longest time for which the policies keep a device away, seconds; 0 for none."""
        hours = [each.longest_wait_hours for each in self.policies or ()]
        return max(self.wait_seconds, 3600.0 * max(hours, default=0.0))

    @property
    def separation(self) -> int:
        """Smallest difference between the numbers of two rounds of a device; 0 for none."""
        # Without policies `max` would fail if the 0 were missing.
        return max(self.round_separation, *(each.gap for each in self.policies or ()), 0)

    def separation_at(self, round_index: int) -> int:
        """Returns the separation that holds for a round."""
        is_later = self.later is not None and round_index >= self.from_round
        return self.most_separation if is_later else self.separation

    @property
    def with_later(self) -> Self:
        """The table as it is from the round `from_round` on: later rules take the place of the
        others."""
        changed = {} if self.later is None else self.later.model_dump(exclude_none=True)
        return self.model_copy(update={**changed, "later": None})

    @property
    def most_separation(self) -> int:
        """Separation of the last rounds; 0 for none."""
        later = 0 if self.later is None else self.later.round_separation or 0
        return max(self.separation, later)

    @property
    def counts_contributions(self) -> bool:
        """Whether a cap, present or later, counts the contributions of devices."""
        caps = [self.max_participations, self.later and self.later.max_participations]
        return any(cap is not None for cap in caps)

    @property
    def keys_by_rule(self) -> dict[str, str]:
        """Keys with their values, for messages: "time" makes devices wait, "rounds" keeps rounds
        apart."""
        told = [each.keys_by_rule for each in self.policies or ()]
        time = [f"participation.timer_hours={self.timer_hours:g}"] if self.has_timer else []
        time += [keys["time"] for keys in told if "time" in keys]
        rounds = [keys["rounds"] for keys in told if "rounds" in keys]
        own = f"participation.round_separation={self.round_separation}"
        if self.hold is not None:
            own = f"the number of devices in participation.hold={self.hold.file}"
        # No policy has `rounds` if round_separation is given, because both together are refused.
        return {"time": " and ".join(time), "rounds": " and ".join(rounds) or own}

    @property
    def young_history_seconds(self) -> float:
        """Seconds that a device must wait after its history began; 0 if no policy requires it."""
        hours = [each.young_history_hours for each in self.policies or ()]
        # All policies must admit a device, so the longest wait decides.
        return 3600.0 * max(hours, default=0.0)

    @property
    def min_example_count(self) -> int:
        """Number of examples that a device must have; 0 if no policy requires any."""
        return max((each.least_examples for each in self.policies or ()), default=0)

    @property
    def counts_uploads(self) -> bool:
        """Whether any policy counts contributions from the start of their upload."""
        by_timer = self.has_timer and self.timer_resets_on == "upload"
        return by_timer or any(each.counts_uploads for each in self.policies or ())

    @property
    def forgets_noticeably(self) -> bool:
        """Whether a device that lost its history knows when the new one began."""
        return self.history_loss_per_day is not None and self.history_loss != "corrupted"

    @model_validator(mode="after")
    def _has_members(self) -> Self:
        if self.member_share <= 0.0:
            raise ValueError(
                f"members={list(self.members)}: no draw is from the first number to below the "
                "second; put the smaller one first"
            )
        return self

    @model_validator(mode="after")
    def _policies_are_of_different_kinds(self) -> Self:
        kinds = collections.Counter(each.kind for each in self.policies or ())
        for kind, count in kinds.items():
            if count > 1:
                raise ValueError(
                    f"policies: {count} have the kind {kind!r}; all must admit a device, so keep "
                    "only the strictest"
                )
        # `round_separation` counts reports that arrived, and min_sep counts uploads that started.
        if self.round_separation and kinds["min_sep"]:
            raise ValueError(
                f"round_separation={self.round_separation}: a device remembers only one last "
                "round, and the policy min_sep counts other rounds; keep one of the two"
            )
        return self

    @model_validator(mode="after")
    def _later_rules_are_stricter(self) -> Self:
        later = self.later
        if later is None:
            # Also given at its default, which changes nothing, so only other values are mistakes.
            if self.from_round and self.hold is None:
                raise ValueError(
                    f"from_round={self.from_round}: neither hold nor later is given; add one, or "
                    "leave from_round out"
                )
            return self
        if later.timer_hours is not None and not self.has_timer:
            raise ValueError(
                f"later.timer_hours={later.timer_hours:g}: policies do not include the timer; add "
                '{kind = "timer"}, or leave later.timer_hours out'
            )
        if later.round_separation and any(each.kind == "min_sep" for each in self.policies or ()):
            raise ValueError(
                f"later.round_separation={later.round_separation}: a device remembers only one "
                "last round, and the policy min_sep counts other rounds; keep one of the two"
            )
        if later.timer_hours is not None and not self.timer_hours and self.timer_violators:
            raise ValueError(
                f"later.timer_hours={later.timer_hours:g} with timer_hours=0 and timer_violators="
                f"{self.timer_violators:g}: no device can ignore a timer of 0 h; leave "
                "timer_violators out"
            )
        for name in ("timer_hours", "round_separation"):
            now, then = getattr(self, name), getattr(later, name)
            if then is not None and then < now:
                raise ValueError(
                    f"later.{name}={then:g} is below {name}={now:g}, but later rules apply besides "
                    "the others; raise it"
                )
        cap = self.max_participations
        if (
            cap is not None
            and later.max_participations is not None
            and later.max_participations > cap
        ):
            raise ValueError(
                f"later.max_participations={later.max_participations} is above max_participations="
                f"{cap}, but later rules apply besides the others; lower it"
            )
        return self

    @model_validator(mode="after")
    def _keys_have_what_they_speak_of(self) -> Self:
        for name in ("timer_hours", "timer_resets_on", "timer_violators", "clock_skew_hours"):
            value = getattr(self, name)
            # A recorded scenario has every key, so a default does not count as given.
            if not self.has_timer and value != type(self).model_fields[name].default:
                raise ValueError(
                    f'{name}={value}: policies do not include the timer; add {{kind = "timer"}}, '
                    f"or leave {name} out"
                )
        if self.history_loss is not None and self.history_loss_per_day is None:
            raise ValueError(
                f"history_loss={self.history_loss!r}: no history is lost without "
                "history_loss_per_day; set it, or leave history_loss out"
            )
        return self
