"""A claim about a run, as a TOML file.

mechanism = "mechanism.json"       # a file of `fedray optimize --out`, relative to this one;
                                   # a table with `kind`, or "tree", or "identity"
noise_multiplier = 7.0
rounds = 980                       # this and the following are optional, each checked if given
min_sep = 227
max_participations = 4
timer_hours = 72.0
frontier = [[227, 3], [240, 4]]    # pairs (min-sep, participations): each device keeps one
sampling = { kind = "poisson", probability = 0.01, devices = 60_000 }
trust = { kind = "enclave" }       # who is trusted: server, devices, enclave or local
rho = 0.48
epsilon = 6.6                      # with delta
delta = 1e-10
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from fedray.audit.statements.frontier import FrontierStatement
from fedray.audit.statements.max_participations import MaxParticipationsStatement
from fedray.audit.statements.min_sep import MinSepStatement
from fedray.audit.statements.rounds import RoundsStatement
from fedray.audit.statements.statement import Statement
from fedray.audit.statements.timer_hours import TimerStatement
from fedray.base.errors import InputError
from fedray.base.table import Positive, Table, read_table_file
from fedray.mechanisms.accounting.draws import AnySampling
from fedray.mechanisms.files import strategy_beside
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import AnyStrategy, Identity
from fedray.scenario.trust import AnyTrust, LocalTrust

Count = Annotated[int, Field(ge=1)]
Pair = Annotated[tuple[Count, Count], Field(strict=False)]
STATEMENTS: tuple[Statement, ...] = (
    RoundsStatement(),
    MinSepStatement(),
    MaxParticipationsStatement(),
    TimerStatement(),
    FrontierStatement(),
)
"""Statements about participation, in the order in which findings and evidence list them."""


class Claim(Table):
    """A claim about a run; a statement of None is not made."""

    refusal: ClassVar[type[InputError]] = InputError

    mechanism: AnyStrategy
    """Strategy matrix C: the name of a mechanism file, a table with `kind`, or a kind that needs no
    parameters, such as "tree"."""
    noise_multiplier: Positive
    """Noise standard deviation over the clip norm."""
    rounds: Count | None = None
    """Largest number of released rounds."""
    min_sep: Count | None = None
    """Least difference between two rounds of one device."""
    max_participations: Count | None = None
    """Largest number of rounds of one device."""
    timer_hours: Annotated[float, Field(ge=0)] | None = None
    """Hours between a device's accepted report and the check-in of its next participation."""
    frontier: Annotated[tuple[Pair, ...], Field(strict=False, min_length=1)] | None = None
    """Pairs [min-sep, max participations], of which each device keeps at least one."""
    sampling: AnySampling | None = Field(
        default=None,
        description="How a sampler chooses the devices of each round: a table with `kind`, "
        "poisson, fixed_size or in_turn.",
    )
    trust: AnyTrust | None = Field(
        default=None,
        description="Who is trusted with updates without noise: a table with `kind`, as "
        "`privacy.trust` of a scenario. If devices add the noise, noise_multiplier is that of the "
        "round with the fewest devices.",
    )
    rho: Positive | None = None
    """rho of zCDP."""
    epsilon: Positive | None = None
    """Epsilon at delta."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-10
    """Delta of epsilon."""

    @field_validator("mechanism", mode="before")
    @classmethod
    def _from_file(cls, value: Any, info: Any) -> Any:
        # A string names a file beside the claim, or a kind; a table is the mechanism itself.
        if isinstance(value, str):
            return strategy_beside(value, "claim", info.context)
        return value

    @model_validator(mode="after")
    def _trust_has_a_mechanism(self) -> Self:
        if isinstance(self.trust, LocalTrust) and not isinstance(self.mechanism, Identity):
            raise ValueError(
                f"trust.kind='local' with mechanism.kind={self.mechanism.kind!r}: a device adds "
                "its noise to one update, independently of earlier rounds; claim the mechanism "
                "identity, or trust.kind='devices'"
            )
        return self

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        rounds, b, k = self.rounds, self.min_sep, self.max_participations
        if rounds is not None and b is not None and k is not None:
            # The constructor refuses limits that contradict each other.
            MinSep(rounds, b, k)
        return self


def read_claim(path: str | Path) -> Claim:
    """Returns the claim in a TOML file at `path`, with the mechanism file that it names, if any.

    Raises:
        InputError: the claim is not valid; the message names every problem.
    """
    return read_table_file(Claim, path, "claim")
