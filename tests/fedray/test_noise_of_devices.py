"""Distributed discrete Gaussian noise: its distribution, what devices send, what is refused, and what the audit makes of it.

Distributions are tested by chi-square with fixed seeds, at p < 1e-4: a false alarm once in 10,000 changes of the draws. Power: with
200,000 draws a variance that is off by 10 % has a p-value below 1e-30; the tests show that it is rejected.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.noise import DeviceNoise
from fedray.audit.privacy_statement import privacy_statement
from fedray.base.discrete_noise import NoiseScale, add_noise
from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, stream_key
from fedray.clients.clipping import clip_whole
from fedray.clients.trainer import LocalTrainer
from fedray.encoding.device_noise import DeviceNoiseEncoding
from fedray.encoding.encoding import ClippedUpdates, SumSetting
from fedray.encoding.factory import encoding_of
from fedray.encoding.norms import device_variance, inflation, largest_square, padded
from fedray.encoding.tables import DeviceNoiseTable, DevicesTrust, LocalTrust
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import DiscreteGaussianSum
from fedray.mechanisms.registry import Identity
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario.clipping import Clip
from fedray.server.learning.aggregator import ModelAggregator
from fedray.wire.messages import TrainOrder

HERE = Placement(1, "in-process")
ALARM, DRAWS = 1e-4, 200_000
KEY = stream_key(1, Stream.DISCRETE_NOISE)


def drawn(variance: Fraction, count: int = DRAWS, device: int = 5, round_index: int = 2):
    scale = NoiseScale.at_least(variance)
    numbers = np.zeros(count, np.int64)
    add_noise(numbers, KEY, device, round_index, *scale)
    return numbers, float(scale.variance)


def p_value(numbers: np.ndarray, variance: float) -> float:
    """Chi-square of the counts of whole numbers, tails joined where fewer than 10 are expected."""
    reach = math.ceil(12 * variance**0.5) + 2
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-(values**2) / (2 * variance))
    expected = numbers.size * weights / weights.sum()
    inside = values[expected >= 10]
    counted = np.bincount(np.clip(numbers, inside[0] - 1, inside[-1] + 1) - inside[0] + 1)
    counted = np.pad(counted, (0, inside.size + 2 - counted.size))
    tail = expected[values < inside[0]].sum()
    law = np.concatenate([[tail], expected[expected >= 10], [tail]])
    if tail < 5:
        counted, law = counted[1:-1], law[1:-1] * counted[1:-1].sum() / law[1:-1].sum()
    return float(stats.chisquare(counted, law * counted.sum() / law.sum()).pvalue)


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1), Fraction(37, 5), Fraction(400)])
def test_numbers_have_the_discrete_gaussian_distribution_and_no_other_variance(
    variance: Fraction,
) -> None:
    numbers, really = drawn(variance)
    assert p_value(numbers, really) > ALARM
    for wrong in (0.9, 1.1):
        assert p_value(numbers, wrong * really) < ALARM


def test_a_wide_distribution_is_right_in_its_body_and_its_tails() -> None:
    """Standard deviation 5,690: twenty cells of equal probability, and the fourth moment."""
    numbers, variance = drawn(Fraction(5690**2))
    cells = np.floor(20 * stats.norm.cdf(numbers / variance**0.5)).astype(int)
    assert stats.chisquare(np.bincount(cells, minlength=20)).pvalue > ALARM
    wrong = np.floor(20 * stats.norm.cdf(numbers / (1.1 * variance) ** 0.5)).astype(int)
    assert stats.chisquare(np.bincount(wrong, minlength=20)).pvalue < ALARM
    fourth = float(((numbers / variance**0.5) ** 4).mean())
    assert abs(fourth - 3.0) < 4.0 * (96.0 / DRAWS) ** 0.5


def test_numbers_are_addressed_by_device_round_and_place() -> None:
    first, _ = drawn(Fraction(100), 1000)
    again, _ = drawn(Fraction(100), 400)
    assert (first[:400] == again).all()
    for device, round_index in ((6, 2), (5, 3), (5 + (1 << 40), 2)):
        other, _ = drawn(Fraction(100), 1000, device, round_index)
        assert abs(float(np.corrcoef(first, other)[0, 1])) < 4 / 1000**0.5


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(10, 3), Fraction(10**9, 7)])
def test_a_variance_is_never_rounded_down_and_hardly_up(variance: Fraction) -> None:
    scale = NoiseScale.at_least(variance)
    assert 1 <= scale.variance / variance < 1 + Fraction(1, 10_000)
    assert scale.t == math.floor(math.sqrt(scale.variance)) + 1


def made(
    devices: int = 100,
    sampled: int | None = None,
    z: float = 1.0,
    dimension: int = 500,
    trust: type[DeviceNoiseTable] = DevicesTrust,
    **keys,
) -> DeviceNoiseEncoding:
    table = trust(parameters=dimension, **keys)
    return DeviceNoiseEncoding(table, SumSetting(dimension, devices, sampled or devices, z, 3))


def zeros(encoding: DeviceNoiseEncoding, devices: int, round_index: int = 0) -> np.ndarray:
    """The decoded sum of devices that send noise alone."""
    total = encoding.zero_sum()
    encoding.encode_zeros_into(total, np.arange(devices, dtype=np.uint64), round_index)
    return encoding.decode(total, 1.0, round_index)


@pytest.mark.slow
@pytest.mark.parametrize(("trust", "more"), [(DevicesTrust, 1.0), (LocalTrust, 10.0)])
@pytest.mark.parametrize("sampled", [100, 20])
def test_the_sum_has_the_noise_of_the_multiplier_and_the_sample(
    sampled: int, trust: type[DeviceNoiseTable], more: float
) -> None:
    """Sums of squares over 30 rounds of 512 coordinates are chi-square; 10 % more or less is noticed. With local noise of 100 devices, ten times the deviation."""
    encoding = made(sampled=sampled, z=2.0, dimension=512, trust=trust)
    rows = np.stack([zeros(encoding, sampled, index) for index in range(30)]).astype(np.float64)
    deviation = 2.0 * encoding.contribution_norm(1.0) * sampled / 100 * more
    for factor, is_right in ((1.0, True), (1.1, False), (0.9, False)):
        square = float(((rows / deviation) ** 2).sum()) / factor
        law = stats.chi2(rows.size)
        assert (2 * min(law.cdf(square), law.sf(square)) > ALARM) == is_right


@pytest.mark.slow
def test_a_device_that_drops_out_takes_its_noise_along() -> None:
    encoding = made(z=2.0, dimension=512)
    whole, half = (
        np.stack([zeros(encoding, devices, index) for index in range(30)]) for devices in (100, 50)
    )
    ratio = float((half.astype(np.float64) ** 2).sum() / (whole.astype(np.float64) ** 2).sum())
    assert ratio == pytest.approx(0.5, abs=0.03)


def test_updates_are_summed_beneath_the_noise_and_failed_devices_send_noise() -> None:
    encoding = made(devices=10, z=0.01, scale=1 << 20)
    values = (np.random.default_rng(0).normal(size=(10, 500)) + 1.0).astype(np.float32)
    values[3, 7] = np.nan
    factors = clip_whole(values, Clip(1.0)).factors
    ids = np.arange(10, dtype=np.uint64)
    total = encoding.zero_sum()
    encoding.encode_into(total, ClippedUpdates(4, ids, values, factors), 1.0)
    exact = factors[factors > 0] @ values[factors > 0].astype(np.float64)
    error = encoding.decode(total, 1.0, 4) - exact
    assert 0.7 < np.linalg.norm(error) / (0.01 * 500**0.5) < 1.3
    alone, failed = encoding.zero_sum(), encoding.zero_sum()
    encoding.encode_into(alone, ClippedUpdates(4, ids[3:4], values[3:4], factors[3:4]), 1.0)
    encoding.encode_zeros_into(failed, ids[3:4], 4)
    assert (alone == failed).all()
    assert alone.any()


def test_a_sum_does_not_depend_on_how_devices_are_grouped() -> None:
    encoding = made(devices=10)
    values = np.random.default_rng(0).normal(size=(10, 500)).astype(np.float32)
    ids, factors = np.arange(10, dtype=np.uint64), clip_whole(values, Clip(1.0)).factors
    together, pieces = encoding.zero_sum(), encoding.zero_sum()
    encoding.encode_into(together, ClippedUpdates(4, ids, values, factors), 1.0)
    for part in ([7, 8, 9], [0], [1, 2, 3, 4, 5, 6]):
        piece = encoding.zero_sum()
        encoding.encode_into(piece, ClippedUpdates(4, ids[part], values[part], factors[part]), 1.0)
        encoding.add(pieces, piece)
    assert (pieces == together).all()


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        (
            {"scale": 100, "devices": 100_000, "z": 0.5},
            ["privacy.trust.scale=100", "below 0.25", "a scale of at least 317"],
        ),
        ({"scale": 1 << 29, "z": 100.0}, ["scale=536870912", "take a scale of at most 131,072"]),
        ({"modulus_bits": 12}, ["modulus_bits=12", "wrap"]),
    ],
)
def test_steps_that_do_not_fit_the_noise_are_refused(keys, parts: list[str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        made(**keys)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def discrete(small, *overrides: str):
    return small(
        "privacy.mechanism={kind='identity'}",
        "privacy.trust={kind='devices', parameters=30320}",
        *overrides,
    )


def test_what_devices_cannot_add_noise_for_is_refused(small) -> None:
    with pytest.raises(ScenarioError, match=r"mechanism\.kind='blt' has no last coefficient"):
        small("privacy.trust={kind='devices', parameters=9}")
    with pytest.raises(ScenarioError, match=r"mechanism\.kind='tree' has no constant diagonals"):
        small("privacy.mechanism={kind='tree'}", "privacy.trust={kind='devices', parameters=9}")
    with pytest.raises(ScenarioError, match=r"trust\.kind='local' with mechanism\.kind='blt'"):
        small("privacy.trust={kind='local', parameters=9}")
    with pytest.raises(ScenarioError, match=r"privacy\.trust\.parameters is missing"):
        small("privacy.mechanism={kind='identity'}", "privacy.trust={kind='devices'}")
    with pytest.raises(ScenarioError, match=r"clipping\.kind='adaptive': counts of short updates"):
        discrete(small, "privacy.clipping={kind='adaptive'}")
    with pytest.raises(
        ScenarioError, match="stop_at: the budget counts only noise that the server adds"
    ):
        discrete(small, "privacy.stop_at={rho=1.0}")
    with pytest.raises(
        ScenarioError, match="parameters=30320 is not the model's number of parameters, 10,"
    ):
        ModelAggregator(discrete(small, "training.enabled=true")).start(np.zeros(10, np.float32))


def test_the_server_adds_no_noise(small) -> None:
    aggregator = ModelAggregator(discrete(small, "training.enabled=true"))
    aggregator.start(np.zeros(30320, np.float32))
    assert not aggregator.release().any()


def test_devices_without_examples_send_noise(small, monkeypatch) -> None:
    """Whoever is accepted adds noise, since the audit counts on it."""
    scenario = discrete(small, "training.enabled=true", "privacy.noise_multiplier=1.0")
    trainer = LocalTrainer(scenario)
    start = trainer.initial_parameters()
    nothing = np.zeros(3, np.int64)
    monkeypatch.setattr(trainer._source, "examples_on", lambda device_ids: nothing)
    ids = np.array([4, 9, 11], np.uint64)
    report, total = trainer.train(TrainOrder(6, [ids]), start)
    assert (report.trained, report.without_examples) == (0, 3)
    encoding = encoding_of(scenario.privacy.sent, scenario.sum_setting(start.size))
    expected = encoding.zero_sum()
    encoding.encode_zeros_into(expected, ids, 6)
    assert (total == expected).all()
    assert total.any()


@pytest.mark.slow
def test_a_model_trains_with_the_noise_of_its_devices(small, tmp_path) -> None:
    """As well as with the server's noise of the same multiplier, here very little."""
    common = (
        "training.enabled=true",
        "training.cohort_sample=12",
        "training.evaluate_every=6",
        "privacy.noise_multiplier=0.5",
        "rounds.count=6",
    )
    secure = discrete(small, *common, "privacy.trust.scale=4096")
    trace = simulate(secure, HERE, tmp_path / "t")
    runs = [
        train(trace, value, HERE, tmp_path / name)
        for name, value in (
            ("discrete", secure),
            ("fixed", secure.with_overrides("privacy.trust={kind='server'}")),
        )
    ]
    found = [float(run.metrics["evaluation_loss"][-1]) for run in runs]
    first = float(runs[0].metrics["train_loss"][0])
    assert found[0] != found[1]
    assert all(loss < first - 0.005 for loss in found)
    assert runs[0].document["encoding"]["kind"] == "devices"


PATTERNS = [[0, 1, 2], [0, 2], [0, 1], [2], [2]]
"""The second of the three rounds has the fewest devices, two."""


def test_the_audit_accounts_for_the_round_with_the_fewest_devices(trace_of, small) -> None:
    scenario = discrete(small, "privacy.noise_multiplier=3.0", "rounds.report_goal=4")
    trace = trace_of(PATTERNS, 3, scenario)
    audit = audit_trace(trace)
    used = audit.mechanisms[0]
    assert isinstance(used.noise, DeviceNoise)
    assert (used.noise.round_index, used.noise.event.devices) == (1, 2)
    # By hand: n sigma^2 / Delta^2 = 2 z^2 / 4, so that rho = 3 x (sqrt(2) / 3)^2 / 2 for three rounds; tau is nothing here.
    event = used.observed.event
    assert isinstance(event, DiscreteGaussianSum)
    assert event.rounds == 3
    assert used.noise.event.tau == 0.0
    assert used.observed.rho == pytest.approx(3 * 2 / 9 / 2, rel=1e-9)
    assert used.observed.mu is None
    spent = epsilon_of(event, 1e-10)
    assert (used.observed.epsilon, spent.accountant) == (spent.epsilon, "zcdp")
    central = audit_trace(trace_of(PATTERNS, 3, small("privacy.mechanism={kind='identity'}")), 3.0)
    assert used.observed.epsilon > central.mechanisms[0].observed.epsilon
    document = audit.to_json()
    assert document["encoding"]["least_noise"] == {
        "round": 1,
        "devices": 2,
        "noise_multiplier": pytest.approx(3 / math.sqrt(2)),
    }
    assert any("round 1, with 2 of 4" in text for text in audit.assumptions)
    # No rule lets a round be committed with two of four devices, so this trace shows what is permitted.
    assert document["encoding"]["least_permitted_noise"]["devices"] == 2
    assert "distributed differential privacy" in audit.assumptions[2]
    assert not any("floating-point" in text for text in audit.assumptions)
    assert audit.over_rounds[-1].epsilon == used.observed.epsilon
    assert audit.device_privacy is not None
    assert audit.device_privacy.quantiles[-1].rho == pytest.approx(used.observed.rho)
    lines = {line.what: line for line in privacy_statement(audit).lines}
    assert "mu (Gaussian DP)" not in lines
    assert "Canonne, Kamath and Steinke 2020" in lines["(epsilon, delta)"].evidence


def test_a_claim_is_held_against_the_noise_of_that_round(trace_of, small) -> None:
    trace = trace_of(
        PATTERNS, 3, discrete(small, "privacy.noise_multiplier=3.0", "rounds.report_goal=4")
    )
    claim = Claim(mechanism=Identity(), noise_multiplier=3.0, max_participations=3, rho=0.2)
    (finding,) = (
        each for each in audit_trace(trace, claim=claim).findings if each.statement == "rho"
    )
    assert finding.verdict == "broken"
    assert finding.found == pytest.approx(1 / 3)


def test_coarse_steps_cost_privacy(trace_of, small) -> None:
    """With a variance of one step per device, a sum of two is not quite a discrete Gaussian: tau is 4e-4, by hand 10 exp(-pi^2 sigma^2)."""
    scenario = discrete(small, "privacy.noise_multiplier=0.015", "rounds.report_goal=4")
    coarse = scenario.with_overrides("privacy.trust.scale=100")
    variance = float(device_variance(0.015, 100, padded(30320), 4))
    used = audit_trace(trace_of(PATTERNS, 3, coarse)).mechanisms[0]
    assert isinstance(used.noise, DeviceNoise)
    event = used.noise.event
    assert event.tau == pytest.approx(10 * math.exp(-(math.pi**2) * variance), rel=1e-6)
    assert 1e-4 < event.tau < 1e-3
    assert event.sensitivity == pytest.approx(100 * inflation(100, padded(30320)), rel=1e-4)
    assert largest_square(100, padded(30320)) == math.floor(event.sensitivity**2 + 1e-6)
    fine = audit_trace(trace_of(PATTERNS, 3, scenario)).mechanisms[0]
    assert used.observed.rho > fine.observed.rho
