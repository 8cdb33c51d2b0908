"""Regret is against the best candidate of the same kind, so that none is below zero.

FEDRAY_ALL_SEEDS has 200 random settings.
"""

import os

import numpy as np
import pytest

from fedray.mechanisms.loss import loss as loss_under
from fedray.mechanisms.optimize.design import MechanismRequest, made_mechanism
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.studies.stress.run import stress

ALL = "FEDRAY_ALL_SEEDS" in os.environ
KINDS = ("banded-toeplitz", "band-fhu", "bisr", "tree", "identity")


def random_setting(seed: int) -> dict:
    """Estimates and truths (b, k) of a small run; k is at times less than fits."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 100))
    min_seps = [sorted({int(b) for b in rng.integers(1, n + 1, 2)}) for _ in range(2)]
    given = {"estimated": min_seps[0], "actual": min_seps[1]}
    if rng.random() < 0.5:
        fits = min(most_of_device(n, b) for b in (*min_seps[0], *min_seps[1]))
        given["estimated_participations"] = given["actual_participations"] = [
            int(rng.integers(1, fits + 1))
        ]
    kinds = [*KINDS, "blt"] if seed % 4 == 0 else [*KINDS]
    return {"rounds": n, "mechanisms": kinds, "loss": ("rms", "max")[seed % 2], **given}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200 if ALL else 6))
def test_no_regret_is_below_zero_and_all_of_a_kind_have_one_best(
    seed: int, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    given = random_setting(seed)
    result = stress(**given)
    assert any(row.regret is not None for row in result.rows)
    for kind in given["mechanisms"]:
        for true in {(row.min_sep, row.max_participations) for row in result.rows}:
            truth = MinSep(given["rounds"], *true)
            own = [
                row
                for row in result.rows
                if row.mechanism == kind
                and (row.min_sep, row.max_participations) == true
                and row.regret is not None
            ]
            assert all(row.regret >= -1e-4 for row in own)
            request = MechanismRequest(kind, truth, objective=given["loss"])
            knew = loss_under(made_mechanism(request, None), truth).of(given["loss"])
            exact = [row for row in own if row.is_exact]
            bests = [row.value / (1 + row.regret) for row in exact]
            # The best is at least as good as the one made for the truth, and as each of the kind.
            assert all(best <= min(knew, exact[0].value) * (1 + 1e-12) for best in bests)
            np.testing.assert_allclose(bests, bests[:1] * len(bests), rtol=1e-12)
