"""From whom the answers to a question are private: each observer's figure against exact sums of
probabilities, closed forms, and the figures of fewer devices."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedray.base.errors import InputError
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import DiscreteGaussianSum, Repeated
from fedray.mechanisms.accounting.shuffling import shuffled_delta, shuffled_epsilon
from fedray.mechanisms.questions.linear import Count, Histogram
from fedray.mechanisms.questions.local import ShuffledReports
from fedray.mechanisms.questions.open_domain import OpenHistogram, PrefixTree
from fedray.mechanisms.questions.question import Question
from fedray.mechanisms.questions.registry import Devices, Enclave, Local, Server, Shuffled
from fedray.mechanisms.questions.trust import OBSERVERS, Budget, Observer, Trust

ANSWERS, DEVICE, OPERATOR, SHARE, NETWORK = OBSERVERS
BUDGET = Budget(1.0, 1e-8)
TRUSTS: tuple[Trust, ...] = (
    Server(),
    Enclave(),
    Devices(least_devices=300),
    Shuffled(least_devices=300),
    Local(),
)


def observed(
    trust: Trust, question: Question, malicious: float = 0.1, windows: int = 1
) -> dict[str, Observer]:
    sums = question.plan(trust, BUDGET).sums
    rows = trust.observed_by(sums, BUDGET.delta, windows, malicious=malicious)
    return {each.name: each for each in rows}


@pytest.mark.slow
@pytest.mark.parametrize("trust", TRUSTS, ids=lambda each: each.kind)
@pytest.mark.parametrize("windows", [1, 5])
def test_every_trust_model_has_a_row_for_each_observer_and_that_of_answers_is_the_budget(
    trust: Trust, windows: int
) -> None:
    for question in (Histogram(size=40), PrefixTree(branching=4, levels=3)):
        rows = observed(trust, question, 0.2, windows)
        extra = ("the shuffler",) if trust.kind == "shuffled" else ()
        assert tuple(rows) == (*OBSERVERS, *extra)
        event = Repeated(event=question.plan(trust, BUDGET).event, count=windows)  # pyright: ignore[reportArgumentType]
        spent = epsilon_of(event, windows * BUDGET.delta).epsilon
        assert rows[ANSWERS].epsilon == spent <= windows * BUDGET.epsilon * (1 + 1e-9)
        for each in rows.values():
            assert (each.epsilon is None) == (each.delta is None)
            assert each.sees
            assert each.reason
            if each.epsilon is not None and each.name != NETWORK:
                assert each.delta == windows * BUDGET.delta
                # Who knows more is not less of a threat; a report has no more than its epsilon.
                assert each.epsilon >= rows[ANSWERS].epsilon * (1 - 1e-6)
        assert (rows[NETWORK].epsilon, rows[NETWORK].delta) == (0.0, 0.0)
        assert "assumed" in rows[NETWORK].reason


@pytest.mark.parametrize("question", [Count(), OpenHistogram(most_keys=2)])
def test_a_server_is_protected_from_only_if_its_enclave_adds_the_noise(question: Question) -> None:
    server, enclave = observed(Server(), question), observed(Enclave(), question)
    for name in (OPERATOR, SHARE):
        assert server[name].epsilon is None
        assert server[name].reason == "it is trusted: it adds the noise"
        assert enclave[name].epsilon == enclave[ANSWERS].epsilon == server[ANSWERS].epsilon
    # No device knows any of the noise.
    assert server[DEVICE].epsilon == server[ANSWERS].epsilon
    assert "trusted" in enclave[OPERATOR].reason


@pytest.mark.parametrize("malicious", [0.0, 0.01, 0.1, 0.333])
def test_of_shares_of_noise_those_of_the_honest_devices_protect(malicious: float) -> None:
    question, trust = PrefixTree(branching=4, levels=3, most_keys=2), Devices(least_devices=50)
    event = question.plan(trust, BUDGET).event
    assert isinstance(event, Repeated)
    assert isinstance(event.event, DiscreteGaussianSum)
    rows = observed(trust, question, malicious)
    for name, honest in (
        (ANSWERS, 50),
        (OPERATOR, 50),
        (DEVICE, 49),
        (SHARE, 50 - math.ceil(50 * malicious)),
    ):
        # rho by hand: the noise of each honest device, and the price of adding several.
        release, k = event.event, np.arange(1, honest)
        tau = 10 * np.exp(-2 * math.pi**2 * release.device_variance * k / (k + 1)).sum()
        apart = release.sensitivity / math.sqrt(honest * release.device_variance)
        rho = 3 * (apart + tau * math.sqrt(release.dimension)) ** 2 / 2
        alpha = 1 + np.exp(np.linspace(-6, 12, 200_001))
        bounds = (
            rho * alpha
            + np.log1p(-1 / alpha)
            + (-math.log(BUDGET.delta) - np.log(alpha)) / (alpha - 1)
        )
        assert rows[name].epsilon == pytest.approx(bounds.min(), rel=1e-3)
        assert f"{honest} devices" in rows[name].reason


def test_a_third_of_malicious_devices_opens_what_secure_aggregation_sums() -> None:
    for malicious in (1 / 3, 0.5, 1.0):
        rows = observed(Devices(least_devices=50), Count(), malicious)
        assert rows[SHARE].epsilon is None
        assert rows[SHARE].reason == "its protocol needs a share below 0.333"
        assert rows[OPERATOR].epsilon is not None
    # Reports need no protocol among devices: all others may help, and the own noise stays.
    own = observed(Local(), Count(), 1.0)
    assert own[SHARE].epsilon == own[OPERATOR].epsilon == own[ANSWERS].epsilon


def test_a_pair_of_devices_leaves_each_other_the_noise_of_one() -> None:
    trust = Devices(least_devices=2)
    two, one = (observed(trust, Count())[name].epsilon for name in (ANSWERS, DEVICE))
    event = Count().plan(trust, BUDGET).event
    assert isinstance(event, DiscreteGaussianSum)
    sizes = np.arange(-4000, 4001)
    half = np.exp(-(sizes**2) / (2 * event.device_variance))
    half /= half.sum()
    step = round(event.sensitivity)
    assert two is not None
    assert one is not None
    for epsilon, chances in ((one, half), (two, np.convolve(half, half))):
        # The exact delta of a shift by the contribution.
        padded = np.pad(chances, (0, step))
        shifted = np.pad(chances, (step, 0))
        exact = np.maximum(padded - math.exp(epsilon) * shifted, 0).sum()
        assert exact <= BUDGET.delta
        tighter = np.maximum(padded - math.exp(0.8 * epsilon) * shifted, 0).sum()
        assert tighter > BUDGET.delta
    assert one > two


@pytest.mark.parametrize("malicious", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("levels", [1, 3])
def test_a_shuffle_hides_a_report_among_the_honest_ones_of_its_group(
    malicious: float, levels: int
) -> None:
    question, trust = PrefixTree(branching=4, levels=levels), Shuffled(least_devices=300)
    sums = question.plan(trust, BUDGET).sums
    assert isinstance(sums, ShuffledReports)
    rows, group, local = observed(trust, question, malicious), 300 // levels, sums.report.epsilon
    for name, honest in (
        (ANSWERS, group),
        (OPERATOR, group),
        (DEVICE, group - 1),
        (SHARE, max(1, group - math.ceil(group * malicious))),
    ):
        epsilon = rows[name].epsilon
        assert epsilon == pytest.approx(shuffled_epsilon(local, honest, BUDGET.delta), rel=1e-6)
        assert shuffled_delta(local, honest, epsilon + 1e-9, 1e-3 * BUDGET.delta) <= BUDGET.delta
    assert rows["the shuffler"].epsilon == pytest.approx(local, rel=1e-6)
    assert local > 1.0
    assert rows["the shuffler"].reason == Local.rests_on


@pytest.mark.slow
def test_more_malicious_devices_never_leave_more_privacy() -> None:
    for trust in TRUSTS:
        found = [observed(trust, Count(), share)[SHARE].epsilon for share in np.linspace(0, 1, 21)]
        figures = [math.inf if each is None else each for each in found]
        assert figures == sorted(figures)


@pytest.mark.slow
def test_the_page_on_questions_has_the_figures_of_new_words() -> None:
    question = PrefixTree(branching=32, levels=3, most_keys=4, most_prefixes=4096)
    budget = Budget(math.log(3), 1e-10)
    trusts = [Server(), Enclave(), Devices(least_devices=200_000)]
    trusts += [Shuffled(least_devices=200_000), Local()]
    shown: dict[str, list[str]] = {}
    for trust in trusts:
        sums = question.plan(trust, budget).sums
        for each in trust.observed_by(sums, budget.delta, malicious=0.1):
            up = "none" if each.epsilon is None else f"{math.ceil(1e3 * each.epsilon) / 1e3:.3f}"
            shown.setdefault(each.name, []).append(up)
    page = (Path(__file__).parents[2] / "docs" / "analytics.md").read_text(encoding="utf-8")
    table = page.partition("### Who is protected from whom")[2].partition("## Errors")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    figures = {row[0].replace("10 %", "a share"): row[1:] for row in rows if len(row) == 6}
    for name in (ANSWERS, DEVICE, OPERATOR, SHARE):
        assert figures[name] == shown[name]
    assert [each for each in figures["the shuffler"] if each] == shown["the shuffler"]


def test_windows_whose_deltas_add_up_to_1_have_no_guarantee_and_impossible_shares_are_refused() -> (
    None
):
    sums = Count().plan(Local(), BUDGET).sums
    rows = Local().observed_by(sums, 0.25, 4, malicious=0.1)
    assert [each.epsilon for each in rows[:4]] == [None] * 4
    assert "add up to 1 or more" in rows[0].reason
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match="malicious="):
            Local().observed_by(sums, 1e-6, malicious=share)
    for delta, windows in ((0.0, 1), (1e-6, 0)):
        with pytest.raises(InputError):
            Local().observed_by(sums, delta, windows, malicious=0.1)
