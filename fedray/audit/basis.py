"""The basis of a verdict: the guarantee that a run may state, and the conditions behind it.

A run may have several guarantees, and release more than a model. Its verdict, statement, page, JSON
and ledger all read the one guarantee chosen here, so that they agree.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedray.audit.assumptions import Assumption
from fedray.audit.guarantees import Guarantee, strongest
from fedray.audit.questions import AnswerPrivacy
from fedray.base.rounding import up

SECRET_DRAWS = "only if the draws stay secret"
"""Condition of a guarantee by sampling."""
WEAK, VACUOUS = 10, 20
"""Epsilon above which Ponomareva et al. 2023 ("How to DP-fy ML", tier 3) call a guarantee weak, and
above which it is called void here: published keyboard models have up to 14, and e^20, the factor by
which the odds of a guess may rise, is half a billion."""


def protects_nobody(epsilon: float | None) -> bool:
    """Returns whether an epsilon is known and void."""
    return epsilon is not None and epsilon > VACUOUS


def weak_text(*epsilons: float | None) -> str:
    """Returns a sentence for each class of weak guarantees that some of the epsilons are in, with
    its largest one if they are of both classes; empty if no known one is weak."""
    known = [each for each in epsilons if each is not None]
    void = [each for each in known if protects_nobody(each)]
    weak = [each for each in known if WEAK < each <= VACUOUS]

    def here(found: Sequence[float]) -> str:
        return f" (here {up(max(found))})" if void and weak else ""

    said = []
    if void:
        said.append(f"An epsilon above {VACUOUS}{here(void)} protects nobody in practice.")
    if weak:
        said.append(f"An epsilon above {WEAK}{here(weak)} is weak (Ponomareva et al. 2023).")
    return " ".join(said)


@dataclass(frozen=True, slots=True)
class Basis:
    """The guarantee of all that a run released, and the assumptions that define its terms."""

    guarantee: Guarantee | None
    """The guarantee that may be published, under its condition; None without one."""
    stated: Guarantee | None
    """The same, or else the strongest known one, on which no guarantee may rest; None if no privacy
    is known."""
    answers: tuple[AnswerPrivacy, ...]
    """Rows of the answers that the guarantee includes, one for each trust model; it is that of the
    first, with the largest epsilon. Empty for a run that released only a model."""
    of_person: tuple[AnswerPrivacy, ...]
    """Rows of a person under the same trust models; empty if owners are unknown, and for a run that
    released only a model."""
    by_name: Mapping[str, Guarantee]
    """Guarantees of all that was released, `observed` and `enforced` among them, if they are
    known."""
    rests_on: tuple[Assumption, ...]
    """Assumptions behind the figures."""

    @property
    def condition(self) -> str:
        """Condition of the stated guarantee: its limits, or the rule of the server."""
        found = self.stated
        if found is None:
            return ""
        if found.name == "sampled":
            return f"{SECRET_DRAWS}: {found.reason}"
        return found.limits

    @property
    def epsilons(self) -> list[float]:
        """Epsilons of `guarantee` and `stated`, infinite if unknown: the larger, the weaker."""
        return [
            math.inf if each is None or each.epsilon is None else each.epsilon
            for each in (self.guarantee, self.stated)
        ]

    @property
    def trust(self) -> tuple[Assumption, ...]:
        """Parties that are trusted with the data behind the stated guarantee."""
        return self.of_kind("trust", *(f"trust {each.trust}" for each in self.answers[:1]))

    def of_kind(self, *kinds: str) -> tuple[Assumption, ...]:
        """Returns the assumptions of some kinds, in the order of the kinds."""
        return tuple(each for kind in kinds for each in self.rests_on if each.kind == kind)

    @property
    def others(self) -> tuple[Assumption, ...]:
        """Assumptions that define none of the terms."""
        terms = {*self.trust, *self.of_kind("unit", "unit of answers", "adjacency")}
        return tuple(each for each in self.rests_on if each not in terms)


def basis_of(
    guarantees: Sequence[Guarantee],
    answers: Sequence[AnswerPrivacy],
    corrected: Guarantee | None,
    rests_on: tuple[Assumption, ...],
) -> Basis:
    """Returns the basis of a run's verdict.

    Args:
        guarantees: guarantees of its model; empty without a model or noise.
        answers: rows of its question or private vocabulary; empty without either.
        corrected: guarantee of a claim with its broken statements corrected; None without a claim.
        rests_on: assumptions behind all of them.
    """
    if answers:
        named = ("enforced", "observed")
        rows = {name: _all_released(answers, bool(guarantees), name, "device") for name in named}
        by_name = {name: _as_guarantee(name, of[0], guarantees) for name, of in rows.items() if of}
        resting = tuple(each for each in rows["enforced"] if each.may_rest_on)
        name = "enforced" if resting else "observed"
        found = by_name.get(name)
        of_person = _all_released(answers, bool(guarantees), name, "person")
        of_device = resting or rows[name]
        return Basis(found if resting else None, found, of_device, of_person, by_name, rests_on)
    known = [each for each in guarantees if each.epsilon is not None]
    least = strongest(known) or corrected
    if least is not None and least.epsilon is None:
        least = None
    by_name = {each.name: each for each in reversed(known)}
    order = ("claimed", "enforced", "observed")
    weaker = next((by_name[name] for name in order if name in by_name), None)
    return Basis(least, least or weaker, (), (), by_name, rests_on)


def _all_released(
    answers: Sequence[AnswerPrivacy], has_model: bool, name: str, unit: str
) -> tuple[AnswerPrivacy, ...]:
    """Returns the rows of a unit with all that a run released and a known epsilon, the largest
    first."""
    of_unit = [each for each in answers if each.unit == unit and name in each.basis]
    rows = [each for each in of_unit if has_model == ("model" in each.basis)]
    known = [each for each in rows if each.epsilon is not None]
    return tuple(sorted(known, key=lambda each: -(each.epsilon or 0.0)))


def _as_guarantee(name: str, row: AnswerPrivacy, guarantees: Sequence[Guarantee]) -> Guarantee:
    """Returns the guarantee of a row, with the participation of the model that it includes."""
    of_model = next((each for each in guarantees if each.name == name), None)
    found = Guarantee(name, None, None, row.event, row.delta, row.may_rest_on, row.reason)
    return found if of_model is None else replace(found, participation=of_model.participation)
