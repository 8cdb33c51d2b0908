"""A claim about a run, as a TOML file.

mechanism = "mechanism.json"       # a file of `fedray optimize --out`, relative to this one;
                                   # a table with `kind`, or "tree", or "identity"
noise_multiplier = 7.0
rounds = 980                       # this and the following are optional, each checked if given
min_sep = 227
max_participations = 4
timer_hours = 72.0
most_per_period = { participations = 1, hours = 168 }
keep_days = 7.0                    # oldest stored upload that a round draws
frontier = [[227, 3], [240, 4]]    # pairs (min-sep, participations): each device keeps one
sampling = { kind = "poisson", probability = 0.01, devices = 60_000 }
trust = { kind = "enclave" }       # who is trusted: server, devices, enclave or local
rho = 0.48
epsilon = 6.6                      # with delta
delta = 1e-10
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from fedray.audit.statements.frontier import FrontierStatement
from fedray.audit.statements.keep_days import KeepDaysStatement
from fedray.audit.statements.max_participations import MaxParticipationsStatement
from fedray.audit.statements.min_sep import MinSepStatement
from fedray.audit.statements.most_per_period import MostPerPeriod, MostPerPeriodStatement
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
    MostPerPeriodStatement(),
    KeepDaysStatement(),
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
    most_per_period: MostPerPeriod | None = None
    """Table: largest number of participations of a device within some hours."""
    keep_days: Positive | None = None
    """Largest age of a stored upload, days since it was complete, when a round draws it."""
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
        "`privacy.trust` of a scenario. If devices add the noise, noise_multiplier is that of a "
        "round of report_goal devices; for a log, that of the round with the fewest devices. For "
        "the kind local it is that of each message.",
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

    def of_rounds(self, count: int) -> Self:
        """Returns the claim about at most `count` rounds."""
        most = None if self.rounds is None else min(self.rounds, count)
        return self.model_copy(update={"rounds": most})

    def to_document(self) -> dict[str, Any]:
        """Returns the digest and the statements, as run.json records them for a run that must
        ensure the claim."""
        return {"digest": self.digest, "claim": self.model_dump(mode="json", exclude_none=True)}

    @property
    def digest(self) -> str:
        """SHA-256 of the statements, whatever the form of their file and the place of a matrix."""
        statements = self.model_dump(mode="json", exclude_none=True)
        # A matrix counts by its own digest.
        statements["mechanism"].pop("file", None)
        return hashlib.sha256(json.dumps(statements, sort_keys=True).encode()).hexdigest()


def claim_of_document(document: Mapping[str, Any], source: str, directory: Path) -> Claim:
    """Returns the claim of a document; the inverse of `Claim.to_document`.

    Args:
        document: the recorded document.
        source: name of the document in messages.
        directory: folder of the matrix of its mechanism, if that is one.

    Raises:
        InputError: the claim was changed, or is not one of this release.
    """
    try:
        # Only from JSON do strict tables take lists as tuples.
        text = json.dumps(document["claim"])
        found = Claim.model_validate_json(text, context={"directory": directory})
    except (LookupError, TypeError, ValueError):
        raise InputError(f"{source}: its claim is not one of this release; use its own") from None
    if found.digest != document.get("digest"):
        raise InputError(f"{source}: its claim was changed; restore it from a copy")
    return found


def read_claim(path: str | Path) -> Claim:
    """Returns the claim in a TOML file at `path`, with the mechanism file that it names, if any.

    Raises:
        InputError: the claim is not valid; the message names every problem.
    """
    return read_table_file(Claim, path, "claim")
