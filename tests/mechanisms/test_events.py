"""One contract for all events and accountants: an epsilon that an independent computation confirms,
or a refusal that says what to do.

The independent computations: delta(epsilon) in decimals (Gaussian noise), brackets by another
library (sampling), the definition of a Renyi divergence by numerical integration (moments), and
probabilities of sums of discrete Gaussians, by convolution.
"""

import itertools
import json
import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from slow_twins import gaussian_delta

from fedray.base.errors import FedrayError
from fedray.mechanisms.accounting.accountants import ACCOUNTANTS, epsilon_of
from fedray.mechanisms.accounting.events import (
    ApproximateDP,
    Composed,
    DiscreteGaussianSum,
    Event,
    EventRefused,
    Gaussian,
    PoissonSampled,
    PostProcessed,
    Repeated,
    StrategyRelease,
    read_event,
)
from fedray.mechanisms.accounting.gdp import gaussian_deltas, mu_of
from fedray.mechanisms.accounting.peer import peer_event
from fedray.mechanisms.accounting.pld import pld_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of, zcdp_epsilon
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Banded, Identity, Tree
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.triangular import lower_factor

DELTA = 1e-6


class Unheard(Event):
    """An event that no accountant knows."""

    kind: Literal["unheard"] = "unheard"


def gaussian(noise_multiplier: float, sensitivity: float = 1.0) -> Gaussian:
    return Gaussian(noise_multiplier=noise_multiplier, sensitivity=sensitivity)


def observed_release(
    strategy: Strategy, pattern: tuple[int, ...], rounds: int, noise_multiplier: float
) -> StrategyRelease:
    return StrategyRelease(
        strategy=strategy,
        rounds=rounds,
        noise_multiplier=noise_multiplier,
        sensitivity=PatternSensitivities(strategy, rounds).exact(np.array(pattern)),
    )


def stated(epsilon: float, delta: float = 0.0) -> ApproximateDP:
    return ApproximateDP(epsilon=epsilon, delta=delta, theorem="a test's")


def sampled(probability: float, event: Event) -> PoissonSampled:
    return PoissonSampled(probability=probability, event=event)


@dataclass(frozen=True)
class Case:
    """An event, and what it is by hand: `mu` where it is Gaussian; (q, z, n) where it is sampled;
    `rho` where it has one; the guarantees where they are stated."""

    event: Event
    mu: float | None = None
    steps: tuple[tuple[float, float, int], ...] = ()
    rho: float | None = None
    stated: tuple[tuple[float, float], ...] = ()


DISCRETE = DiscreteGaussianSum(sensitivity=2.0, device_variance=0.5, devices=40, dimension=3)
CASES = {
    "gaussian": Case(gaussian(2.0, 3.0), mu=1.5),
    "nothing": Case(gaussian(2.0, 0.0), mu=0.0),
    "tree": Case(StrategyRelease.under(Tree(), MinSep(2052, 342, 6), 7.0), mu=math.sqrt(118) / 7),
    "patterns": Case(
        observed_release(Identity(), (2, 4, 5), 6, 2.0),
        mu=math.sqrt(3) / 2,
    ),
    "count": Case(Gaussian(noise_multiplier=0.8), mu=1.25),
    "post-processed": Case(
        PostProcessed(event=gaussian(2.0), computation="the average over rounds"), mu=0.5
    ),
    "nine times": Case(Repeated(event=gaussian(4.0), count=9), mu=0.75),
    "adaptive clipping": Case(
        # Andrew et al. 2021, Theorem 1: a multiplier of 1.2 is divided between the two releases.
        Composed(
            events=(
                gaussian((1.2**-2 - (2 * 5.0) ** -2) ** -0.5),
                gaussian(10.0),
            )
        ),
        mu=1 / 1.2,
    ),
    "everybody sampled": Case(Repeated(event=sampled(1.0, gaussian(3.0)), count=4), mu=2 / 3),
    "sampled": Case(
        Repeated(event=sampled(0.02, gaussian(1.1)), count=40), steps=((0.02, 1.1, 40),)
    ),
    "sampled, two releases": Case(
        Repeated(
            event=sampled(0.01, Composed(events=(gaussian(2.0), gaussian(2.0)))),
            count=40,
        ),
        steps=((0.01, math.sqrt(2.0), 40),),
    ),
    "sampled, composed by hand": Case(
        Composed(events=(sampled(0.1, gaussian(1.5)), sampled(0.1, gaussian(1.5)))),
        steps=((0.1, 1.5, 2),),
    ),
    "two samplings": Case(
        Composed(events=(sampled(0.1, gaussian(1.5)), sampled(0.2, gaussian(2.0)))),
        steps=((0.1, 1.5, 1), (0.2, 2.0, 1)),
    ),
    "sampled, and not": Case(
        Composed(events=(sampled(0.1, gaussian(1.5)), gaussian(2.0))),
        steps=((0.1, 1.5, 1), (1.0, 2.0, 1)),
    ),
    "discrete, one device": Case(
        DiscreteGaussianSum(sensitivity=3.0, device_variance=4.0, devices=1, dimension=1000),
        rho=9 / 8,
    ),
    "discrete sum": Case(
        DISCRETE,
        rho=(2 / math.sqrt(20) + math.sqrt(3) * DISCRETE.tau) ** 2 / 2,
    ),
    "discrete, 10 rounds": Case(
        Repeated(
            event=DiscreteGaussianSum(sensitivity=1.0, device_variance=9.0, devices=1, dimension=5),
            count=10,
        ),
        rho=10 / 18,
    ),
    "discrete and normal": Case(
        Composed(
            events=(
                DiscreteGaussianSum(sensitivity=1.0, device_variance=4.0, devices=1, dimension=5),
                gaussian(2.0),
            )
        ),
        rho=0.25,
    ),
    "stated": Case(stated(1.1, 1e-7), stated=((1.1, 1e-7),)),
    "stated, no delta": Case(stated(0.7), rho=0.245, stated=((0.7, 0.0),)),
    "stated, eight times": Case(
        Repeated(event=stated(0.4, 1e-8), count=8), stated=((0.4, 1e-8),) * 8
    ),
    "stated, composed": Case(
        Composed(events=(stated(1.0), stated(0.25, 4e-7), stated(0.0, 1e-7))),
        stated=((1.0, 0.0), (0.25, 4e-7), (0.0, 1e-7)),
    ),
    "stated and discrete": Case(
        Composed(
            events=(
                DiscreteGaussianSum(sensitivity=1.0, device_variance=4.0, devices=1, dimension=5),
                stated(0.3, 5e-7),
            )
        ),
        rho=1 / 8 + 0.045,
        stated=((0.0, 5e-7),),
    ),
}
REFUSED = {
    "unheard": Unheard(),
    "a sample of a stream": sampled(0.1, StrategyRelease.under(Identity(), MinSep(10, 1, 10), 1.0)),
    "a sample of integers": sampled(0.1, DISCRETE),
}


def takes(accountant: str, case: Case) -> bool:
    """Whether there is a theorem."""
    if case.stated:
        own = any(delta for _, delta in case.stated)
        is_mixed = own and case.rho is not None
        return accountant == "zcdp" or (
            not is_mixed if accountant == "pld" else accountant == "renyi" and not own
        )
    match accountant:
        case "gdp":
            return case.mu is not None
        case "pld":
            return case.mu is not None or len(case.steps) == 1
        case "zcdp":
            return not case.steps
        case "monte-carlo":
            return False
        case _:
            return True


PAIRS = [(accountant, name) for accountant in ACCOUNTANTS for name in CASES]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accountant", "name"), [each for each in PAIRS if takes(each[0], CASES[each[1]])]
)
def test_every_epsilon_is_confirmed_independently(accountant: str, name: str) -> None:
    case = CASES[name]
    epsilon = ACCOUNTANTS[accountant](case.event, DELTA)
    CONFIRMED[accountant](case, epsilon)


@pytest.mark.parametrize(
    ("accountant", "name"), [each for each in PAIRS if not takes(each[0], CASES[each[1]])]
)
def test_what_has_no_theorem_is_refused_with_a_remedy(accountant: str, name: str) -> None:
    with pytest.raises(EventRefused, match="use the accountant (pld|zcdp|renyi)"):
        ACCOUNTANTS[accountant](CASES[name].event, DELTA)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("name", REFUSED)
def test_every_accountant_refuses_what_nothing_is_proven_for(accountant: str, name: str) -> None:
    with pytest.raises(EventRefused, match="describe|make the event with|use the accountant"):
        ACCOUNTANTS[accountant](REFUSED[name], DELTA)
    with pytest.raises(EventRefused):
        epsilon_of(REFUSED[name], DELTA)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("delta", [0.0, 1e-31, 1.0, math.nan])
def test_every_accountant_refuses_an_impossible_delta(accountant: str, delta: float) -> None:
    with pytest.raises(ValueError, match="delta="):
        ACCOUNTANTS[accountant](gaussian(1.0), delta)


@pytest.mark.parametrize("accountant", sorted(ACCOUNTANTS.keys() - {"monte-carlo"}))
def test_epsilon_grows_with_every_release_and_falls_with_noise_and_delta(accountant: str) -> None:
    epsilon = ACCOUNTANTS[accountant]
    once = epsilon(gaussian(2.0), DELTA)
    assert epsilon(gaussian(2.5), DELTA) < once < epsilon(gaussian(2.0), DELTA / 10)
    assert once < epsilon(Composed(events=(gaussian(2.0), gaussian(9.0))), DELTA)
    assert once < epsilon(Repeated(event=gaussian(2.0), count=2), DELTA)


def is_gaussian_curve(case: Case, epsilon: float) -> None:
    """In decimals enough for every digit (Balle and Wang 2018, Theorem 8), from both sides."""
    assert case.mu is not None
    if case.mu == 0:
        assert epsilon == 0
        return
    assert gaussian_delta(case.mu, epsilon * (1 + 1e-14)) <= DELTA
    assert gaussian_delta(case.mu, epsilon * (1 - 1e-12)) > DELTA * (1 - 2e-10)


def is_bracketed(case: Case, epsilon: float) -> None:
    """By distributions of another library: losses rounded down, and up."""
    if case.stated:
        assert stated_delta(case, epsilon * (1 + 1e-12)) <= DELTA
        # Each loss was rounded up by at most the interval.
        assert stated_delta(case, epsilon - 1e-4 * len(case.stated) - 1e-9) > DELTA
        return
    if case.mu is not None:
        is_gaussian_or_composed = epsilon == pytest.approx(
            ACCOUNTANTS["gdp"](case.event, DELTA), rel=2e-3
        )
        assert is_gaussian_or_composed
        return
    from dp_accounting.pld import privacy_loss_distribution

    ((q, z, n),) = case.steps
    least, most = (
        privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=z,
            sampling_prob=q,
            value_discretization_interval=interval,
            pessimistic_estimate=is_most,
            use_connect_dots=is_most,
        )
        .self_compose(n)
        .get_epsilon_for_delta(DELTA)
        for interval, is_most in ((1e-4, False), (1e-4, True))
    )
    assert least <= epsilon <= most * (1 + 1e-3)
    assert most - least < 0.03 * most, "the bracket says something"


def is_conversion_of_rho(case: Case, epsilon: float) -> None:
    """delta <= e^((alpha - 1)(alpha rho - epsilon)) / (alpha - 1) (1 - 1/alpha)^alpha at the best
    alpha, by another search."""
    rho = case.mu**2 / 2 if case.mu is not None else case.rho
    own = math.fsum(delta for _, delta in case.stated)
    if rho is None:
        rho = math.fsum(epsilon**2 / 2 for epsilon, _ in case.stated)
    if own:
        with pytest.raises(EventRefused, match="a delta of its own"):
            rho_of(case.event)
    else:
        assert rho_of(case.event) == pytest.approx(rho, rel=1e-12)
    left = DELTA - own

    def bound(log_order: float) -> float:
        a = 1 + math.exp(log_order)
        terms = -math.log(left) - math.log(a - 1) + a * math.log1p(-1 / a)
        return a * rho + terms / (a - 1)

    best = 0.0 if rho == 0 else minimize_scalar(bound, bounds=(-3, 12), method="bounded").fun
    assert best * (1 - 1e-9) <= epsilon <= best * (1 + 1e-4)


def stated_delta(case: Case, epsilon: float) -> float:
    """delta(epsilon) of the dominating pair (Kairouz, Oh, Viswanath 2015), over all outcomes."""
    kept, above = 1.0, 0.0
    for _, delta in case.stated:
        kept *= 1 - delta
    for signs in itertools.product((1, -1), repeat=len(case.stated)):
        loss = sum(sign * each for sign, (each, _) in zip(signs, case.stated, strict=True))
        chance = math.prod(
            1 / (1 + math.exp(-sign * each))
            for sign, (each, _) in zip(signs, case.stated, strict=True)
        )
        above += chance * max(0.0, 1 - math.exp(epsilon - loss))
    return 1 - kept * (1 - above)


@pytest.mark.parametrize(
    ("epsilon", "own", "count", "delta"),
    [
        (0.1, 0.0, 1000, 1e-10),
        (0.1, 0.0, 1000, 1e-20),
        (0.05, 0.0, 300, 1e-14),
        (0.3, 0.0, 200, 1e-14),
        (2.0, 1e-14, 21, 1e-12),
        (0.01, 0.0, 5000, 1e-30),
        (1.0, 1e-9, 11, 11 * 1e-9),
    ],
)
def test_stated_guarantees_of_one_epsilon_compose_optimally_at_small_deltas(
    epsilon: float, own: float, count: int, delta: float
) -> None:
    """By the definition in 60 digits: never below the exact epsilon, and within 1e-6 of it. Parts
    with a delta only are beside them, as of a threshold."""
    window = Composed(events=(stated(epsilon), stated(0.0, own))) if own else stated(epsilon)
    found = pld_epsilon(Repeated(event=window, count=count), delta)
    with localcontext(prec=60):
        grown = Decimal(epsilon).exp()
        kept = [math.comb(count, i) * grown ** (count - i) for i in range(count + 1)]

        def exact(at: float) -> Decimal:
            above = sum(
                chance
                * max(Decimal(0), 1 - (Decimal(at) - (count - 2 * i) * Decimal(epsilon)).exp())
                for i, chance in enumerate(kept)
            )
            return 1 - (1 - Decimal(own)) ** count * (1 - above / (1 + grown) ** count)

        assert exact(found) <= Decimal(delta)
        # Where delta is all that the parts state, nothing is left for a smaller epsilon.
        assert exact(found * (1 - 1e-6)) > Decimal(delta)


def test_stated_guarantees_of_several_epsilons_compose_optimally() -> None:
    """By the definition, over all outcomes; and less than their sum, 3.75."""
    guarantees = ((0.5, 0.0), (0.25, 0.0), (0.0, 1e-9)) * 5
    case = Case(Composed(events=tuple(stated(*each) for each in guarantees)), stated=guarantees)
    found = pld_epsilon(case.event, 1e-2)
    assert found < 3.0
    assert stated_delta(case, found * (1 + 1e-9)) <= 1e-2 < stated_delta(case, found * (1 - 1e-6))


@pytest.mark.parametrize(
    "parts", [(stated(1e-4),), (stated(0.05), gaussian(1.0)), (stated(0.1), stated(0.11))]
)
def test_zcdp_follows_where_stated_guarantees_have_too_many_losses(parts: tuple) -> None:
    event = Composed(events=tuple(Repeated(event=each, count=1 << 16) for each in parts))
    with pytest.raises(EventRefused, match="use the accountant zcdp"):
        pld_epsilon(event, 1e-6)
    assert epsilon_of(event, 1e-6) == (zcdp_epsilon(event, 1e-6), "zcdp")


@pytest.mark.parametrize("left", [-1e-16, 0.0, 1e-31, 1e-20])
def test_zcdp_follows_where_stated_deltas_nearly_use_up_delta(left: float) -> None:
    own = Repeated(event=stated(0.5, 1e-6), count=3)
    event = Composed(events=(gaussian(4.0), own))
    with pytest.raises(EventRefused, match="used up"):
        pld_epsilon(event, 3e-6 + left)
    # A little more is enough for zCDP, which subtracts the deltas exactly.
    assert epsilon_of(event, 3e-6 + 1e-15).accountant == "zcdp"
    assert epsilon_of(event, 4e-6).accountant == "pld"


@pytest.mark.parametrize("mu", [1e-6, 0.01, 0.5, 3.0, 40.0])
def test_deltas_of_a_gaussian_are_bounded_from_above(mu: float) -> None:
    """In decimals (Balle and Wang 2018, Theorem 8); a negative epsilon by the symmetry of both
    directions. The bound exceeds the larger of two terms by 1e-11 of it at most."""
    epsilons = np.array([mu * (a + mu / 2) for a in (-8.0, -1.0, -0.1, 0.0, 0.3, 2.0, 5.0, 9.0)])
    for epsilon, found in zip(epsilons, gaussian_deltas(mu, epsilons), strict=True):
        size = Decimal(float(abs(epsilon)))
        exact = gaussian_delta(mu, abs(epsilon))
        if epsilon < 0:
            exact = 1 - (-size).exp() + (-size).exp() * exact
        most = Decimal(norm.cdf(mu / 2 - epsilon / mu))
        assert exact <= Decimal(float(found)) <= exact + Decimal("4e-11") * most


def log_moments(case: Case, orders: list[int]) -> list[float]:
    """log E[(density ratio)^order] by the definition, numerically; for discrete noise the proven
    bound."""
    if case.rho is not None:
        return [order * (order - 1) * case.rho for order in orders]
    steps = case.steps or ((1.0, 1 / case.mu if case.mu else 1e6, 1),)
    totals = np.zeros(len(orders))
    for q, z, n in steps:
        x = np.arange(-15 * z, 15 * z + max(orders) + 1, z / 40)
        log_base = -(x**2) / (2 * z * z) - math.log(z * math.sqrt(2 * math.pi))
        with np.errstate(divide="ignore"):
            log_ratio = np.logaddexp(np.log(1 - q), math.log(q) + (2 * x - 1) / (2 * z * z))
        for place, order in enumerate(orders):
            logs = log_base + order * log_ratio
            top = logs.max()
            totals[place] += n * (top + math.log(np.trapezoid(np.exp(logs - top), x)))
    return totals.tolist()


def is_renyi(case: Case, epsilon: float) -> None:
    """By the definition at some orders, with the same conversion: never better than the least of
    all orders, and close to it."""
    orders = list(range(2, 65))
    bounds = [
        (m - math.log(DELTA) - math.log(a - 1) + a * math.log1p(-1 / a)) / (a - 1)
        for m, a in zip(log_moments(case, orders), orders, strict=True)
    ]
    if case.mu == 0:
        assert epsilon == 0
        return
    assert min(bounds) * 0.98 <= epsilon <= min(bounds) * (1 + 1e-6)


CONFIRMED = {
    "gdp": is_gaussian_curve,
    "pld": is_bracketed,
    "zcdp": is_conversion_of_rho,
    "renyi": is_renyi,
}


def test_every_accountant_is_confirmed() -> None:
    # test_random_rounds.py confirms the accountant by draws.
    assert CONFIRMED.keys() == ACCOUNTANTS.keys() - {"monte-carlo"}


@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("variance", [0.3, 1.0])
def test_rho_of_discrete_noise_bounds_the_divergence_of_its_probabilities(
    devices: int, variance: float
) -> None:
    """In one dimension, with probabilities by convolution, of shifts by up to the sensitivity."""
    integers = np.arange(-60, 61)
    one = np.exp(-(integers**2) / (2 * variance))
    one /= one.sum()
    total = np.ones(1)
    for _ in range(devices):
        total = np.convolve(total, one)
    event = DiscreteGaussianSum(
        sensitivity=2.0, device_variance=variance, devices=devices, dimension=1
    )
    rho = rho_of(event)
    inside = slice(total.size // 2 - 12, total.size // 2 + 13)
    for shift in (1, 2):
        p, q = total[inside], np.roll(total, shift)[inside]
        for order in (1.5, 2.0, 5.0):
            logs = order * np.log(p) + (1 - order) * np.log(q)
            divergence = math.log(float(np.exp(logs).sum())) / (order - 1)
            assert divergence <= order * rho * (1 + 1e-9)
        epsilon = ACCOUNTANTS["zcdp"](event, 1e-3)
        assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= 1e-3


def test_sums_of_too_coarse_discrete_noise_are_refused() -> None:
    with pytest.raises(FedrayError, match="device_variance=0.2 must be at least 0.25"):
        DiscreteGaussianSum(sensitivity=1.0, device_variance=0.2, devices=2, dimension=1)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.mu is not None])
def test_mu_is_the_one_by_hand(name: str) -> None:
    assert mu_of(CASES[name].event) == pytest.approx(CASES[name].mu, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "accountant"),
    [
        ("stated, eight times", "pld"),
        ("tree", "gdp"),
        ("sampled", "pld"),
        ("discrete sum", "zcdp"),
        ("two samplings", "renyi"),
    ],
)
def test_the_epsilon_of_an_event_is_that_of_its_tightest_accountant(
    name: str, accountant: str
) -> None:
    event = CASES[name].event
    assert epsilon_of(event, DELTA) == (ACCOUNTANTS[accountant](event, DELTA), accountant)


def test_a_stated_epsilon_beside_a_sample_adds_its_rho() -> None:
    """As a private vocabulary beside sampled rounds: no accountant takes both but that of Renyi."""
    samples = CASES["sampled"].event
    stated = ApproximateDP(epsilon=0.5, delta=0.0, theorem="any")
    found = epsilon_of(Composed(events=(samples, stated)), DELTA)
    twin = epsilon_of(Composed(events=(samples, gaussian(1.0 / 0.5))), DELTA)
    assert found.accountant == "renyi"
    assert found.epsilon == pytest.approx(twin.epsilon, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_events_are_the_same_when_they_are_read_back(name: str) -> None:
    event = CASES[name].event
    read = read_event(json.loads(json.dumps(event.to_json())))
    assert read == event
    assert epsilon_of(read, DELTA) == epsilon_of(event, DELTA)


def test_the_matrix_of_a_strategy_is_found_beside_its_event(tmp_path) -> None:
    matrix = lower_factor(np.eye(5) + 0.25 * (np.eye(5, k=1) + np.eye(5, k=-1)))
    event = StrategyRelease.under(Banded.from_matrix(matrix, "C.npy"), MinSep(5, 2, 3), 1.0)
    with pytest.raises(FedrayError, match=r"C\.npy"):
        read_event(event.to_json(), tmp_path)
    np.save(tmp_path / "C.npy", matrix)
    assert read_event(event.to_json(), tmp_path) == event


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"kind": "gausian"}, "did you mean 'gaussian'"),
        ({"kind": "gaussian", "noise_multiplier": 0.0}, "must be from 0.01"),
        ({"kind": "composed", "events": []}, "events"),
        ({"kind": "repeated", "count": 0, "event": {"kind": "unheard"}}, "unheard"),
        (3, "3"),
    ],
)
def test_what_is_no_event_is_refused_in_one_line(document, told: str) -> None:
    with pytest.raises(FedrayError, match=told) as error:
        read_event(document)
    assert "\n" not in str(error.value)


def test_events_cannot_be_changed() -> None:
    event = gaussian(1.0)
    with pytest.raises(ValidationError, match="frozen"):
        event.sensitivity = 2.0  # pyright: ignore[reportAttributeAccessIssue]
    assert len({event, gaussian(1.0)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in CASES if not name.startswith(("nothing", "stated"))]
)
def test_another_tool_finds_the_same_of_its_own_events(name: str) -> None:
    """dp_accounting, by loss distributions where it has them, else by Renyi DP."""
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    case = CASES[name]
    peer = peer_event(case.event)
    if case.rho is None:
        found = PLDAccountant(value_discretization_interval=1e-4).compose(peer)
        ours = ACCOUNTANTS["gdp" if case.mu is not None else "renyi"](case.event, DELTA)
        most = 1e-3 if case.mu is not None else 1.0
        assert -1e-3 <= 1 - found.get_epsilon(DELTA) / ours <= most
    rdp = RdpAccountant().compose(peer).get_epsilon(DELTA)
    assert rdp == pytest.approx(ACCOUNTANTS["renyi"](case.event, DELTA), rel=1e-12)


@given(
    st.lists(st.floats(0.5, 50.0), min_size=1, max_size=5),
    st.integers(1, 6),
    st.floats(-12, -2).map(lambda exponent: 10**exponent),
)
@settings(max_examples=40, deadline=None)
def test_a_composition_is_one_gaussian_of_the_summed_squares(
    multipliers: list[float], count: int, delta: float
) -> None:
    event = Repeated(event=Composed(events=tuple(map(gaussian, multipliers))), count=count)
    mu = math.sqrt(count * sum(z**-2 for z in multipliers))
    assert mu_of(event) == pytest.approx(mu, rel=1e-12)
    assert rho_of(event) == pytest.approx(mu**2 / 2, rel=1e-12)
    found = {name: ACCOUNTANTS[name](event, delta) for name in ("gdp", "zcdp", "renyi")}
    assert found["gdp"] <= min(found["zcdp"], found["renyi"])


@given(st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True))
@settings(max_examples=20, deadline=None)
def test_a_strategy_under_a_participation_is_no_better_than_any_pattern_it_permits(
    rounds: list[int],
) -> None:
    pattern = sorted(rounds)
    gap = min((b - a for a, b in zip(pattern, pattern[1:], strict=False)), default=12)
    strategy = BLT(theta=(0.9,), omega=(0.3,))
    most = min(len(pattern), -(-12 // gap))
    permitted = StrategyRelease.under(strategy, MinSep(12, gap, most), 1.0)
    assert observed_release(strategy, pattern, 12, 1.0).mu <= permitted.mu * (1 + 1e-12)
