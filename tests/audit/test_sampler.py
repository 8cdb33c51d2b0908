"""`fedray audit --sampler`: known mistakes are caught, correct samplers pass, and tests keep their false-alarm rate."""

import importlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, hypergeom, kstest

from fedray.audit.findings import Verdict
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.statements.sampling import _chernoff, _edge, _scores, check_sampling
from fedray.imports.sampler import record_sampler
from fedray.mechanisms.accounting.calibration import noise_multiplier_for
from fedray.mechanisms.accounting.draws import FixedSizeDraws, InTurn, PoissonDraws
from fedray.mechanisms.registry import Tree

N, ROUNDS, SIZE = 1000, 80, 50
"""Devices, rounds and (mean) size of a round of the samplers here."""
RUNS = 100 if "FEDRAY_ALL_SEEDS" in os.environ else 40
POISSON = PoissonDraws(devices=N, probability=SIZE / N)
FIXED = FixedSizeDraws(devices=N, size=SIZE)
IN_TURN = InTurn(devices=N)
Rounds = Iterable[Iterable[int]]
Sampler = Callable[[np.random.Generator], Rounds]


def patterns_of(rounds: Rounds) -> Patterns:
    listed = [np.asarray(list(each), np.int64) for each in rounds]
    devices = np.concatenate(listed)
    numbers = np.repeat(np.arange(len(listed)), [each.size for each in listed])
    order = np.lexsort([numbers, devices])
    ids, counts = np.unique(devices, return_counts=True)
    return Patterns(len(listed), ids.astype(np.uint64), counts, numbers[order].astype(np.uint32))


def poisson(draw: np.random.Generator, q: float = SIZE / N, devices: int = N) -> Rounds:
    return [np.flatnonzero(draw.random(devices) < q) for _ in range(ROUNDS)]


def fixed(draw: np.random.Generator, devices: int = N) -> Rounds:
    return [draw.choice(devices, SIZE, replace=False) for _ in range(ROUNDS)]


def shuffled_epochs(draw: np.random.Generator) -> Rounds:
    order = np.concatenate([draw.permutation(N) for _ in range(ROUNDS * SIZE // N)])
    return order.reshape(ROUNDS, SIZE)


def same_order(draw: np.random.Generator) -> Rounds:
    order = draw.permutation(N)
    return np.tile(order, ROUNDS * SIZE // N).reshape(ROUNDS, SIZE)


def min_sep(draw: np.random.Generator) -> Rounds:
    """Poisson draws of the devices that were in none of the last four rounds (b-min-sep)."""
    last = np.full(N, -5)
    for number in range(ROUNDS):
        # The rate among those that may come is raised, so that sizes are as claimed.
        may_come = number - last >= 5
        chosen = np.flatnonzero(may_come & (draw.random(N) < SIZE / may_come.sum()))
        last[chosen] = number
        yield chosen


def dropping(draw: np.random.Generator) -> Rounds:
    """Passes over the devices in which one that is blocked by its min-sep is dropped from the pool
    for good: what jax_privacy's pull request 399 mends."""
    pool, last = draw.permutation(N).tolist(), {}
    for number in range(ROUNDS):
        chosen: list[int] = []
        while len(chosen) < SIZE and pool:
            device = pool.pop(0)
            # A fiftieth is blocked by its owner's other examples.
            if draw.random() < 0.02 or number - last.get(device, -100) < 10:
                continue
            chosen.append(device)
            last[device] = number
        pool += chosen
        yield chosen


def some_never(draw: np.random.Generator) -> Rounds:
    return fixed(draw, int(0.97 * N))


def favourites(draw: np.random.Generator) -> Rounds:
    weights = np.where(np.arange(N) < N // 2, 1.3, 0.7)
    return [draw.choice(N, SIZE, replace=False, p=weights / N) for _ in range(ROUNDS)]


def cut(draw: np.random.Generator) -> Rounds:
    """Poisson batches in memory for a standard deviation more than their mean."""
    return [draw.permutation(each)[:57] for each in poisson(draw)]


def filled(draw: np.random.Generator) -> Rounds:
    """Poisson batches, of which small ones are drawn again."""
    for each in poisson(draw):
        yield each if len(each) >= 44 else draw.choice(N, 44, replace=False)


def repeating(draw: np.random.Generator) -> Rounds:
    return [draw.choice(N, SIZE) for _ in range(ROUNDS)]


CORRECT: dict[str, tuple[Sampler, Any]] = {
    "poisson": (poisson, POISSON),
    "fixed size": (fixed, FIXED),
    "shuffled epochs": (shuffled_epochs, IN_TURN),
    "the same order": (same_order, IN_TURN),
}
WRONG: dict[str, tuple[Sampler, Any]] = {
    "fixed size as poisson": (fixed, POISSON),
    "epochs as poisson": (shuffled_epochs, POISSON),
    "min-sep as poisson": (min_sep, POISSON),
    "cut poisson": (cut, POISSON),
    "filled poisson": (filled, POISSON),
    "another probability": (lambda draw: poisson(draw, 1.15 * SIZE / N), POISSON),
    "a smaller population": (lambda draw: poisson(draw, SIZE / 900, 900), POISSON),
    "poisson as fixed size": (poisson, FIXED),
    "epochs as fixed size": (shuffled_epochs, FIXED),
    "devices that never come": (some_never, FIXED),
    "favourites": (favourites, FIXED),
    "with replacement": (repeating, FIXED),
    "dropped examples": (dropping, IN_TURN),
    "poisson in turn": (poisson, IN_TURN),
}


def is_rejected(sampler: Sampler, claimed: Any, seed: int) -> bool:
    finding = check_sampling(claimed, patterns_of(sampler(np.random.default_rng(seed))))
    return finding.verdict is Verdict.BROKEN


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_sampler_passes(name: str) -> None:
    assert not is_rejected(*CORRECT[name], seed=1)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sampler_is_caught(name: str) -> None:
    assert is_rejected(*WRONG[name], seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sampler_is_caught_in_each_of_many_runs(name: str) -> None:
    assert sum(is_rejected(*WRONG[name], seed) for seed in range(RUNS)) == RUNS


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_correct_samplers_are_rejected_at_the_stated_rate_and_no_more_often(name: str) -> None:
    """Runs at 1e-3, of which 3 of 100 fail with probability 1.5e-4; and four times as many at 0.2,
    so that a test which is too eager is found: more than the bound have probability 1e-6."""
    sampler, claimed = CORRECT[name]
    assert sum(is_rejected(sampler, claimed, seed) for seed in range(RUNS)) <= 2
    often = claimed.model_copy(update={"false_alarm_rate": 0.2})
    alarms = sum(is_rejected(sampler, often, seed) for seed in range(1000, 1000 + 4 * RUNS))
    assert alarms <= binom.isf(1e-6, 4 * RUNS, 0.2)
    # Tests that can never reject would keep any rate.
    assert isinstance(claimed, InTurn) or alarms > RUNS / 10


def test_scores_are_standard_normal_for_any_discrete_counts() -> None:
    """Kolmogorov-Smirnov at 1e-6, on 100,000 scores of counts of which most are 0 or 1."""
    draw = np.random.default_rng(5)
    laws: tuple[Any, ...] = (binom(3, 0.1), hypergeom(20, 3, 5), binom(400, 0.99))
    for law in laws:
        scores = _scores(law, law.rvs(100_000, random_state=draw), draw)
        assert kstest(scores, "norm").pvalue > 1e-6


def test_neighbours_in_a_random_subset_are_hypergeometric() -> None:
    """All subsets of 5 of 12 rounds, one by one."""
    subsets = list(itertools.combinations(range(12), 5))
    near = [sum(b - a == 1 for a, b in itertools.pairwise(each)) for each in subsets]
    found = np.bincount(near, minlength=5) / len(subsets)
    np.testing.assert_allclose(found, hypergeom.pmf(np.arange(5), 12, 4, 5), atol=1e-14)


def test_the_bound_for_devices_that_never_come_is_above_the_exact_tail() -> None:
    """Exact by all ways in which 3 rounds may draw 2 of 6 devices."""
    draws = list(itertools.combinations(range(6), 2))
    never = [6 - len(set().union(*each)) for each in itertools.product(draws, repeat=3)]
    expected = (1 - 2 / 6) ** 3
    for least in range(1, 5):
        exact = float(np.mean(np.array(never) >= least))
        assert _chernoff(least / 6, expected, 6) >= exact
    assert _chernoff(4 / 6, expected, 6) < 1.0


@pytest.mark.slow
def test_the_extreme_sizes_of_poisson_draws_alarm_at_most_at_the_stated_rate() -> None:
    """Many runs, both tests, four rates. Of an exact or conservative test, more alarms than the
    bound have probability 1e-7 each. A test that never can alarm would keep any rate, so at 0.2
    each must."""
    draw, law, runs = np.random.default_rng(11), binom(N, SIZE / N), 30 * RUNS
    sizes = draw.binomial(N, SIZE / N, (runs, ROUNDS))
    largest = [_edge(each.max(), each, law.cdf, law.pmf) for each in sizes]
    smallest = [_edge(each.min(), each, lambda n: law.sf(n - 1), law.pmf) for each in sizes]
    for found in (np.array(largest), np.array(smallest)):
        for rate in (0.2, 0.05, 0.01, 0.001):
            assert np.count_nonzero(found <= rate) <= binom.isf(1e-7, runs, rate)
        assert np.count_nonzero(found <= 0.2) > 0.05 * runs


def test_the_test_of_the_largest_size_is_exact_by_all_outcomes_one_by_one() -> None:
    """All sizes of 4 rounds of 3 devices: the probability of none larger, and given that, of as
    many of this size."""
    law, rounds = binom(3, 0.4), 4
    chances: dict[tuple[int, int], float] = {}
    for sizes in itertools.product(range(4), repeat=rounds):
        key = max(sizes), sizes.count(max(sizes))
        chances[key] = chances.get(key, 0.0) + float(np.prod(law.pmf(sizes)))
    for largest, ties in chances:
        sizes = np.array([largest] * ties + [largest - 1] * (rounds - ties))
        none = sum(p for (size, _), p in chances.items() if size <= largest)
        given = sum(p for (size, _), p in chances.items() if size == largest)
        more = sum(p for (size, count), p in chances.items() if size == largest and count >= ties)
        both = none * more / given
        found = _edge(largest, sizes, law.cdf, law.pmf)
        assert found == pytest.approx(both * (1 - math.log(both)), rel=1e-9, abs=1e-12)


def test_batches_cut_at_a_size_that_a_hundred_rounds_pass_are_rejected() -> None:
    """2,000 devices at 0.05, at most 110 in a batch: no larger one in 100 rounds has probability
    F(110)^100, which is 2.5e-7."""
    draw, law = np.random.default_rng(7), binom(2000, 0.05)
    assert law.cdf(110) ** 100 == pytest.approx(2.5e-7, rel=0.05)
    claimed = PoissonDraws(devices=2000, probability=0.05)
    rounds = [draw.permutation(np.flatnonzero(draw.random(2000) < 0.05)) for _ in range(100)]
    assert check_sampling(claimed, patterns_of(rounds)).verdict is Verdict.HOLDS
    found = check_sampling(claimed, patterns_of(each[:110] for each in rounds))
    assert found.verdict is Verdict.BROKEN
    assert isinstance(found.found, float)
    assert found.found < law.cdf(110) ** 100
    assert "the one of the largest rounds has the least p-value" in found.explanation


def audited(
    fedray_command, folder: Path, monkeypatch, rounds: Rounds, claim: str
) -> tuple[int, str, str]:
    """`fedray audit --sampler` on a module that yields these rounds."""
    listed = [[int(each) for each in of_round] for of_round in rounds]
    (folder / f"sampler_{folder.name}.py").write_text(f"rounds = {listed!r}\n")
    (folder / "claim.toml").write_text(claim)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    name = f"sampler_{folder.name}:rounds"
    return fedray_command("--quiet", "audit", "--sampler", name, "--assume", "claim.toml", "--json")


def unit_rows(gram: np.ndarray) -> np.ndarray:
    """C with C C' = X, as pfl 0.6.0 takes it: X has a unit diagonal, so rows have unit norm."""
    return np.linalg.cholesky(gram)


def unit_columns(gram: np.ndarray) -> np.ndarray:
    """C with C'C = X, as the theorem needs it."""
    return np.linalg.cholesky(gram[::-1, ::-1]).T[::-1, ::-1]


@pytest.mark.parametrize(("factor", "code"), [(unit_rows, 1), (unit_columns, 0)])
def test_a_banded_matrix_with_unit_rows_is_caught_and_one_with_unit_columns_passes(
    tmp_path: Path, fedray_command, monkeypatch, factor: Callable[..., np.ndarray], code: int
) -> None:
    n, b, z = 30, 5, 2.0
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    # A product of two positive definite kernels, which vanishes from b on.
    matrix = factor(np.maximum(0.0, 1.0 - apart / b) * 0.95**apart)
    np.save(tmp_path / "C.npy", np.tril(matrix))
    rounds = [[10 * (number % b) + each for each in range(10)] for number in range(n)]
    k = n // b
    # The accountant charges k Gaussians of sensitivity 1, since columns b apart are orthogonal.
    claim = (
        f"mechanism = {{kind = 'matrix', file = 'C.npy'}}\nnoise_multiplier = {z}\nrounds = {n}\n"
        f"min_sep = {b}\nmax_participations = {k}\nrho = {k / (2 * z * z)!r}\n"
    )
    found, printed, error = audited(fedray_command, tmp_path, monkeypatch, rounds, claim)
    assert found == code, printed + error
    assert not code or "does not follow from the claimed limits" in error
    # The true sensitivity of one period's columns, by which the charge is too small.
    squares = [(matrix[:, start::b] ** 2).sum() for start in range(b)]
    ratio = math.sqrt(max(squares) / k)
    assert (1.06 <= ratio <= 1.72) if code else ratio == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("comes_again", "code"), [(100, 1), (1000, 0)])
def test_a_tree_that_is_charged_as_if_each_device_came_once_is_caught(
    tmp_path: Path, fedray_command, monkeypatch, comes_again: int, code: int
) -> None:
    n = 1000
    matrix = Tree().definition(n)
    once = float(np.sqrt((matrix**2).sum(axis=0).max()))
    z = noise_multiplier_for(once, 1e-6, epsilon=10.0)
    rounds = [[number % comes_again] for number in range(n)]
    claim = f"mechanism = 'tree'\nnoise_multiplier = {z!r}\nrounds = {n}\nepsilon = 10.0\ndelta = 1e-6\n"
    claim += f"max_participations = {n // comes_again}\nmin_sep = {comes_again}\n"
    found, printed, error = audited(fedray_command, tmp_path, monkeypatch, rounds, claim)
    assert found == code, printed + error
    assert not code or "does not follow from the claimed limits" in error


POISSON_DRAWS = f"{{kind = 'poisson', probability = {SIZE / N}, devices = {N}}}"
FIXED_DRAWS = f"{{kind = 'fixed_size', size = {SIZE}, devices = {N}}}"


@pytest.mark.parametrize(
    ("sampler", "mechanism", "z", "epsilon", "draws", "code"),
    [
        (poisson, "identity", 1.0, 4.0, POISSON_DRAWS, 0),
        (shuffled_epochs, "identity", 1.0, 4.0, POISSON_DRAWS, 1),
        # 80 rounds give 28.4 to whoever is in all of them, and 5.79085 to a device that is drawn.
        (fixed, "identity", 2.0, 5.791, FIXED_DRAWS, 0),
        (fixed, "identity", 2.0, 5.79, FIXED_DRAWS, 1),
        (shuffled_epochs, "identity", 2.0, 5.791, FIXED_DRAWS, 1),
        (fixed, "blt-400", 2.0, 5.791, FIXED_DRAWS, 1),
    ],
)
def test_an_amplified_epsilon_holds_only_if_the_draws_are_as_claimed(
    tmp_path: Path,
    fedray_command,
    monkeypatch,
    sampler: Sampler,
    mechanism: str,
    z: float,
    epsilon: float,
    draws: str,
    code: int,
) -> None:
    claim = (
        f"mechanism = '{mechanism}'\nnoise_multiplier = {z}\nrounds = 80\nepsilon = {epsilon}\n"
        f"delta = 1e-5\nsampling = {draws}\n"
    )
    rounds = sampler(np.random.default_rng(1))
    found, printed, error = audited(fedray_command, tmp_path, monkeypatch, rounds, claim)
    assert found == code, printed + error


@pytest.mark.parametrize(
    ("code", "arguments", "reason"),
    [
        ("x = 5", ("--rounds", "3"), "'int' object is not callable"),
        ("", ("--rounds", "3"), "has no attribute 'x'"),
        ("def x():\n    yield [1]\n    1 / 0", ("--rounds", "3"), ", line 3: ZeroDivisionError"),
        ("x = [[1], [2]]", ("--rounds", "3"), "ended after 2 of 3 rounds"),
        ("x = [[1.5]]", ("--rounds", "1"), "an id of type float"),
        ("x = ['abc']", ("--rounds", "1"), "a round is of type str, not a list of ids"),
        ("x = [bytearray(b'a')]", ("--rounds", "1"), "a round is of type bytearray"),
        ("x = [{'inputs': [1]}]", ("--rounds", "1"), "a round is of type dict, not a list of ids"),
        ("x = range(9)", ("--rounds", "1"), "a round is of type int, not a list of ids"),
        ("x = [[[1, 2], [3, 4]]]", ("--rounds", "1"), "an id of type list"),
        ("x = [[True, False]]", ("--rounds", "1"), "an id of type bool"),
        ("x = [[1, '1']]", ("--rounds", "1"), "ids are integers in part and strings in part"),
        ("x = [[1], ['1']]", ("--rounds", "2"), "ids are integers in part and strings in part"),
        ("x = [[5, -1]]", ("--rounds", "1"), "has the id -1, which is not from 0 to 2^64 - 1"),
        ("x = [[2**64]]", ("--rounds", "1"), "has the id 18446744073709551616, which"),
        (r"x = [['\ud800']]", ("--rounds", "1"), "surrogates not allowed"),
        ("x = [['']]", ("--rounds", "1"), "a round has an empty id"),
        ("import numpy as np\nx = [np.array(3)]", ("--rounds", "1"), "iteration over a 0-d array"),
        ("import numpy as np\nx = [np.ma.masked_less([1, 5], 3)]", ("--rounds", "1"), "NoneType"),
        ("x = [[1]]", (), "--rounds must be given"),
        ("x = [[1]]", ("--rounds", "0"), "must be at least 1"),
        ("x = [[1]]", ("--claim", "claim.toml"), "leave out TRACE"),
        ("import sys; sys.exit(0)", ("--rounds", "1"), "SystemExit"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    tmp_path: Path, fedray_command, monkeypatch, code: str, arguments: tuple[str, ...], reason: str
) -> None:
    name = f"wrong_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / "claim.toml").write_text("mechanism = 'tree'\nnoise_multiplier = 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found, _, error = fedray_command(
        "--quiet", "audit", "--sampler", f"{name}:x", "--assume", "claim.toml", *arguments
    )
    assert found == 2
    assert reason in error
    assert error.count("\n") == 1


def test_an_endless_sampler_stops_and_a_round_may_be_empty(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    name = f"endless_{tmp_path.name}"
    text = "import itertools\ndef x():\n    for n in itertools.count():\n        yield ['a', 'b'] if n % 2 else []\n"
    (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "claim.toml").write_text(
        "mechanism = 'tree'\nnoise_multiplier = 1.0\nmin_sep = 2\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ("audit", "--sampler", f"{name}:x", "--assume", "claim.toml", "--rounds", "9")
    code, printed, _ = fedray_command("--quiet", *command)
    assert code == 0
    assert "9 rounds, " in printed


ROUNDS_OF_IDS = {
    "lists": "[[5, 3], [], [5]]",
    "tuples, sets and generators": "[(5, 3), set(), (each for each in [5])]",
    "numpy": "[np.array([5, 3], np.uint8), np.array([], int), np.array([5])]",
    "torch": "[torch.tensor([5, 3]), torch.tensor([]), [torch.tensor(5)]]",
    "a class of rounds": "[[5, 3], [], [5]]\nrounds, made = 0, rounds\n"
    "class rounds:\n    def __iter__(self): return iter(made)",
    "a function": "[[5, 3], [], [5]]\nrounds, made = 0, rounds\ndef rounds(): return made",
    "torch's batches": "0\nfrom torch.utils.data import BatchSampler\nclass of:\n"
    "    def __iter__(self): return iter([5, 3])\n    def __len__(self): return 2\n"
    "rounds = [*BatchSampler(of(), 2, False), [], [5]]",
}


@pytest.mark.parametrize("shape", ROUNDS_OF_IDS)
def test_rounds_of_any_shape_are_the_same_ids(shape: str, tmp_path: Path, monkeypatch) -> None:
    name = f"shaped_{list(ROUNDS_OF_IDS).index(shape)}"
    code = f"import numpy as np\nimport torch\nrounds = {ROUNDS_OF_IDS[shape]}\n"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    trace = record_sampler(f"{name}:rounds", 3, tmp_path)
    patterns = read_patterns(trace)
    assert patterns.counts.tolist() == [1, 2]
    assert patterns.rounds.tolist() == [0, 0, 2]
    assert [trace.name_of(each) for each in (0, 1)] == ["3", "5"]


def test_ids_of_all_64_bits_stay_apart(tmp_path: Path, monkeypatch) -> None:
    """Hashes are as often from 2^63 on as below."""
    (tmp_path / "hashed.py").write_text(
        "import numpy as np\nrounds = [np.array([2**63, 7, 2**64 - 1], np.uint64), [2**63]]\n"
    )
    monkeypatch.chdir(tmp_path)
    trace = record_sampler("hashed:rounds", 2, tmp_path)
    assert read_patterns(trace).counts.tolist() == [1, 2, 1]
    names = [trace.name_of(each) for each in range(3)]
    assert names == ["7", "9223372036854775808", "18446744073709551615"]


def test_a_sampler_changes_nothing_but_the_rounds(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """What it prints is no result, and where it goes nobody follows."""
    name = f"loud_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "import os, warnings\nimport numpy as np\nprint('imported')\n"
        "def x():\n    os.chdir('/')\n    np.seterr(all='raise')\n"
        "    warnings.simplefilter('error')\n    print('called')\n    yield from [[1], [2]]\n"
    )
    claim = "mechanism = 'tree'\nnoise_multiplier = 1.0\nmin_sep = 2\n"
    (tmp_path / "claim.toml").write_text(claim)
    monkeypatch.chdir(tmp_path)
    command = ("audit", "--sampler", f"{name}:x", "--assume", "claim.toml", "--rounds", "2")
    path, errors = list(sys.path), np.geterr()
    code, printed, _ = fedray_command("--quiet", *command, "--json", "--page", "page.html")
    assert code == 0
    assert json.loads(printed)["rounds"] == 2
    assert (tmp_path / "page.html").exists()
    assert (Path.cwd(), sys.path, np.geterr()) == (tmp_path, path, errors)


def test_the_samplers_of_the_documentation_do_as_they_say(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "callbacks"))
    samplers: Any = importlib.import_module("samplers")

    batches = patterns_of(samplers.jax_privacy_batches())
    claimed = PoissonDraws(devices=2000, probability=0.05, false_alarm_rate=1e-9)
    assert check_sampling(claimed, batches).verdict is Verdict.HOLDS
    source = patterns_of(itertools.islice(samplers.min_sep_source(), 200))
    assert check_sampling(InTurn(devices=1200), source).verdict is Verdict.HOLDS
    assert source.min_sep == 40 * 3
