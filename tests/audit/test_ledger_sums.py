"""Sums of a ledger over releases: by key, by name of distinct ids, and by kind of release, as slow twins have them."""

import json
import math
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedray.audit import ledger_sums
from fedray.audit.ledger_sums import Charge, Spending, components_of, summed, total_of
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import (
    ApproximateDP,
    Composed,
    DiscreteGaussianSum,
    Gaussian,
    PoissonSampled,
    Repeated,
)
from fedray.mechanisms.accounting.zcdp import rho_of, zcdp_epsilon

LAPLACE = ApproximateDP(epsilon=0.5, theorem="").to_json()
SHARES = DiscreteGaussianSum(
    sensitivity=4.0, device_variance=9.0, devices=50, dimension=8
).to_json()
THRESHOLD = Composed(
    events=(
        ApproximateDP(epsilon=0.25, theorem=""),
        ApproximateDP(epsilon=0.0, delta=1e-9, theorem=""),
    )
).to_json()
RELEASES: list[Any] = ["gaussian", "zcdp", LAPLACE, SHARES, THRESHOLD]


def drawn(draw: random.Random) -> list[Charge]:
    """Charges of random releases, some with several versions, of eight names under four keys."""
    charges = []
    for place in range(draw.randint(1, 5)):
        release, by_name = draw.choice(RELEASES), draw.random() < 0.4
        for _ in range(draw.randint(1, 3)):
            names = draw.sample([f"{key}{i}" for key in "abcd" for i in range(2)], 5)
            amounts = np.array([float(draw.randint(0, 3)) for _ in names])
            keys = pa.array([each[0] for each in names])
            charges.append(Charge((place, 0), release, pa.array(names), keys, amounts, by_name))
    return charges


def twin(charges: list[Charge]) -> tuple[list[dict[str, float]], int, int]:
    """The spending of every unit that may be, by release; the number of units, and of units with several names."""
    places = {each.place for each in charges}
    by_key: Any = defaultdict(lambda: defaultdict(float))
    by_name: Any = defaultdict(lambda: defaultdict(float))
    for place in places:
        versions = [each for each in charges if each.place == place]
        largest: Any = defaultdict(float)
        for each in versions:
            for name, key, amount in zip(each.names.to_pylist(), each.keys.to_pylist(), each.amounts, strict=True):  # fmt: skip
                unit = (key, name) if each.by_name else (key, None)
                largest[unit] = max(largest[unit], amount)
        for (key, name), amount in largest.items():
            spent = by_key[key] if name is None else by_name[key, name]
            spent[json.dumps(versions[0].release)] += amount
    found, units = [dict(each) for each in by_key.values()], 0
    for key in {*by_key, *(key for key, _ in by_name)}:
        own = [each for (of, _), each in by_name.items() if of == key]
        units += max(1, len(own))
        for each in own:
            both = by_key.get(key, {})
            found.append({r: each.get(r, 0) + both.get(r, 0) for r in {*each, *both}})
    names: Any = defaultdict(set)
    for each in charges:
        for name, key in zip(each.names.to_pylist(), each.keys.to_pylist(), strict=True):
            names[key].add(name)
    return found, units, sum(len(names[key]) > 1 for key in by_key)


def epsilon_of_spent(spent: dict[str, float], delta: float) -> float:
    events: list[Any] = []
    is_gaussian = True
    for text, amount in spent.items():
        release = json.loads(text)
        if amount and isinstance(release, str):
            is_gaussian &= release == "gaussian"
            events.append(Gaussian(noise_multiplier=1.0, sensitivity=math.sqrt(2 * amount)))
        elif amount:
            events.append({"kind": "repeated", "event": release, "count": int(amount)})
    if not events:
        return 0.0
    event = ledger_sums.read_event(
        {"kind": "composed", "events": [e if isinstance(e, dict) else e.to_json() for e in events]}
    )
    return epsilon_of(event, delta).epsilon if is_gaussian else zcdp_epsilon(event, delta)


@pytest.mark.parametrize("seed", range(60))
def test_sums_are_those_of_a_slow_twin(seed: int) -> None:
    draw = random.Random(seed)
    charges = drawn(draw)
    found = summed(charges, components_of(each.release for each in charges))
    units, count, respelled = twin(charges)
    assert (found.units, found.respelled) == (count, respelled)
    assert found.epsilon(1e-6) == pytest.approx(
        max(epsilon_of_spent(each, 1e-6) for each in units), rel=1e-9
    )
    rho = {json.dumps(r): 1.0 for r in RELEASES[:2]}
    rho |= {json.dumps(LAPLACE): 0.125, json.dumps(THRESHOLD): 0.03125}
    rho[json.dumps(SHARES)] = rho_of(ledger_sums.read_event(SHARES))
    largest = max(sum(rho[r] * amount for r, amount in each.items()) for each in units)
    assert found.rho == pytest.approx(largest, rel=1e-12)


def test_many_units_of_which_none_covers_another_get_an_upper_bound(monkeypatch) -> None:
    draw = np.random.default_rng(3)
    components = components_of(["gaussian", LAPLACE])
    rows = np.column_stack([draw.random(50), np.zeros((50, 2)), draw.integers(0, 9, 50)])
    exact = Spending(components, rows).epsilon(1e-6)
    each = [Spending(components, row[None]).epsilon(1e-6) for row in rows]
    assert exact == max(each)
    monkeypatch.setattr(ledger_sums, "MOST_CANDIDATES", 2)
    bound = Spending(components, rows).epsilon(1e-6)
    whole = Spending(components, rows.max(axis=0, keepdims=True)).epsilon(1e-6)
    assert exact < bound <= whole


def test_answers_whose_deltas_use_up_the_budgets_have_no_epsilon() -> None:
    components = components_of([THRESHOLD])
    (kept, beyond) = (
        Spending(components, total_of([(THRESHOLD, count)], components)[None]).epsilon(1e-6)
        for count in (900, 1100)
    )
    assert 0 < kept < math.inf
    assert beyond == math.inf


def test_an_event_whose_privacy_depends_on_sampling_is_refused() -> None:
    sampled = PoissonSampled(probability=0.1, event=Gaussian(noise_multiplier=1.0))
    repeated = Repeated(event=sampled, count=3)
    with pytest.raises(InputError, match="'poisson-sampled' depends on how devices are sampled"):
        components_of([repeated.to_json()])
