"""Mechanisms made for MaxLoss and for RmsLoss, against an optimiser that shares no code with fedray."""

import json
from functools import cache

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.optimize import minimize
from scipy.signal import lfilter

pytestmark = pytest.mark.slow

SETTINGS = [(1000, 250, 4), (400, 40, 10), (300, 300, 1), (600, 100, 3)]
NAMES = {"rms": "RmsLoss", "max": "MaxLoss"}


def coefficients(p: np.ndarray, n: int) -> np.ndarray:
    """c_0 = 1, c_i = sum_j omega_j theta_j^(i - 1), of log decays and log weights."""
    decays, weights = np.exp(p).reshape(2, -1)
    return np.r_[1.0, weights @ np.exp(-np.outer(decays, np.arange(n - 1.0)))]


def losses(p: np.ndarray, n: int, b: int, k: int) -> dict[str, float]:
    """Losses by power series: 1 / c are the coefficients of C^-1, and their running sums those of A C^-1."""
    c = coefficients(p, n)
    inverse = lfilter([1.0], c, np.eye(1, n)[0])
    variances = np.cumsum(np.cumsum(inverse) ** 2)
    column = sum(np.r_[np.zeros(j * b), c[: n - j * b]] for j in range(k))
    sensitivity = np.linalg.norm(column)
    # Theorem 3.1 holds for coefficients that do not increase.
    sensitivity *= 1.0 + 100.0 * max(0.0, float(np.diff(c).max()))
    return {
        "rms": sensitivity * variances.mean() ** 0.5,
        "max": sensitivity * variances.max() ** 0.5,
    }


def dense_losses(p: np.ndarray, n: int, b: int, k: int) -> dict[str, float]:
    """The same by matrices."""
    C = toeplitz(coefficients(p, n), np.zeros(n))
    errors = np.linalg.norm(np.tri(n) @ np.linalg.inv(C), axis=1)
    sensitivity = np.linalg.norm(C[:, : k * b : b].sum(axis=1))
    return {
        "rms": sensitivity * (errors**2).mean() ** 0.5,
        "max": sensitivity * errors.max(),
    }


@cache
def least(objective: str, n: int, b: int, k: int) -> float:
    """The least loss of four buffers that L-BFGS finds from three starts, with differences for derivatives."""
    found = []
    for slowest, fastest in ((0.05 / n, 0.5), (1.0 / n, 1.0), (10.0 / n, 2.0)):
        start = np.log(np.r_[np.geomspace(slowest, fastest, 4), np.full(4, 0.1)])
        best = minimize(
            lambda p: float(np.log(losses(p, n, b, k)[objective])),
            start,
            method="L-BFGS-B",
            bounds=[(-30.0, 2.5)] * 4 + [(-15.0, 0.0)] * 4,
            options={"maxiter": 400, "maxfun": 10_000, "ftol": 1e-12, "gtol": 1e-7},
        )
        found.append((best.fun, best.x))
    _, p = min(found, key=lambda each: each[0])
    value = dense_losses(p, n, b, k)[objective]
    assert value == pytest.approx(losses(p, n, b, k)[objective], rel=1e-9)
    return value


@pytest.mark.parametrize(("n", "b", "k"), SETTINGS)
def test_each_table_is_led_by_the_least_of_the_loss_that_it_shows(
    n: int, b: int, k: int, fedray_command, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    setting = ("--rounds", str(n), "--min-sep", str(b), "--max-participations", str(k))
    for loss in NAMES:
        file = ("--loss", loss, "--out", f"{loss}.json")
        assert fedray_command("optimize", "blt", *setting, *file)[0] == 0
    usual = json.loads(fedray_command("optimize", "blt", *setting, "--json")[1])
    assert usual["loss"] == "rms"
    given = ("mechanism", "rms.json", "max.json", "tree", *setting)
    for loss, name in NAMES.items():
        code, out, _ = fedray_command(*given, "--loss", loss)
        with capsys.disabled():
            print(f"\n{out}")
        assert code == 0
        assert f"Least error at equal privacy: {loss} ({name} " in " ".join(out.split())
        found = json.loads(fedray_command(*given, "--loss", loss, "--json")[1])["mechanisms"]
        ours = found[f"{loss}.json"][f"{loss}_loss"]
        # The differences of the other search end a little above its optimum.
        assert ours <= least(loss, n, b, k) * (1 + 1e-5)
        assert ours >= least(loss, n, b, k) * (1 - 2e-3)
        other = found["max.json" if loss == "rms" else "rms.json"][f"{loss}_loss"]
        assert other >= ours * (1 - 1e-9)
        if loss == "rms":
            assert usual["rms_loss"] == ours
            assert usual["parameters"] == found["rms.json"]["parameters"]
        if (n, b, k, loss) == (1000, 250, 4, "rms"):
            assert (ours, other) == pytest.approx((6.6539, 6.9524), abs=5.1e-5)
