"""What every encoding must do, one suite for all: sums are exact whatever the grouping, nobody contributes more than is said, and what
is decoded is the sum of the clipped updates."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.clients.clipping import clip_whole
from fedray.encoding import tensors
from fedray.encoding.encoding import ClippedUpdates, Encoding, SumSetting
from fedray.encoding.factory import encoding_of
from fedray.encoding.norms import padded
from fedray.encoding.tables import (
    DeviceNoiseTable,
    DevicesTrust,
    EncodingTable,
    FixedPoint,
    LocalTrust,
    SecAgg,
)
from fedray.mechanisms.registry import Identity
from fedray.scenario.clipping import Clip
from fedray.scenario.privacy import Privacy
from fedray.scenario.trust import AnyTrust, EnclaveTrust, ServerTrust

TRUST: dict[str, AnyTrust] = {
    "server": ServerTrust(),
    "enclave": EnclaveTrust(),
    "devices": DevicesTrust(parameters=1),
    "devices, correlated": DevicesTrust(parameters=1),
    "local": LocalTrust(parameters=1),
}
ENCODINGS: dict[str, EncodingTable] = {
    "fixed_point": FixedPoint(),
    "secagg": SecAgg(scale=1000),
    "secagg, more room": SecAgg(scale=1 << 20, modulus_bits=40),
}
SENT = ENCODINGS | {k: each for k, each in TRUST.items() if isinstance(each, DeviceNoiseTable)}
COEFFICIENTS = {"devices, correlated": (5, 3, 0, -1)}
ERRORS = {
    "fixed_point": lambda dimension, devices: devices * dimension**0.5 * 2.0**-39,
    "secagg": lambda dimension, devices: devices * padded(dimension) ** 0.5 / 1000,
    "secagg, more room": lambda dimension, devices: devices * padded(dimension) ** 0.5 / 2**20,
}
"""The largest L2 error of a decoded sum, over the clip norm, before it is rounded to float32."""
ALL = pytest.mark.parametrize("kind", SENT)
WITHOUT_NOISE = pytest.mark.parametrize(
    "kind", [kind for kind, table in SENT.items() if not table.adds_noise]
)
DEVICES = 12


@pytest.mark.parametrize("kind", TRUST)
def test_updates_are_sent_by_the_table_of_trust_if_devices_add_the_noise(kind: str) -> None:
    trust = TRUST[kind]
    sent = Privacy(mechanism=Identity(), trust=trust).sent
    assert sent is trust if isinstance(trust, DeviceNoiseTable) else sent == FixedPoint()


def made(kind: str, dimension: int) -> Encoding:
    table, coefficients = SENT[kind], COEFFICIENTS.get(kind, (1,))
    if isinstance(table, DeviceNoiseTable):
        table = table.model_copy(update={"parameters": dimension})
    setting = SumSetting(dimension, DEVICES, DEVICES, 1.0, 11, coefficients)
    return encoding_of(table, setting)


def updates_of(
    devices: int, dimension: int, clip_norm: float, seed: int = 0, round_index: int = 3
) -> ClippedUpdates:
    """Updates of very different lengths; about half are longer than the clip norm."""
    rng = np.random.default_rng(seed)
    lengths = clip_norm * np.logspace(-2, 2, devices)[:, None] / dimension**0.5
    values = ((rng.normal(size=(devices, dimension)) + 1.0) * lengths).astype(np.float32)
    factors = clip_whole(values, Clip(clip_norm)).factors
    return ClippedUpdates(round_index, np.arange(devices, dtype=np.uint64) + 7, values, factors)


def rows(updates: ClippedUpdates, places: slice | list[int]) -> ClippedUpdates:
    return ClippedUpdates(
        updates.round_index,
        updates.device_ids[places],
        updates.values[places],
        updates.factors[places],
    )


def encoded(encoding: Encoding, updates: ClippedUpdates, clip_norm: float) -> np.ndarray:
    total = encoding.zero_sum()
    encoding.encode_into(total, updates, clip_norm)
    return total


def exact_sum(updates: ClippedUpdates) -> np.ndarray:
    return updates.factors @ updates.values.astype(np.float64)


@pytest.mark.compiles
@ALL
@pytest.mark.parametrize("dimension", [1, 5, 64, 1000])
def test_a_sum_does_not_depend_on_how_devices_are_grouped(kind: str, dimension: int) -> None:
    """In one group; one by one; and as sums of two trainers, added by the aggregator, in either order."""
    encoding, updates = made(kind, dimension), updates_of(DEVICES, dimension, 0.3)
    together = encoded(encoding, updates, 0.3)
    one_by_one = encoding.zero_sum()
    for place in range(DEVICES - 1, -1, -1):
        encoding.encode_into(one_by_one, rows(updates, [place]), 0.3)
    assert (one_by_one == together).all()
    parts = [
        encoded(made(kind, dimension), rows(updates, part), 0.3)
        for part in ([0, 4, 8], [1, 2, 3, 5, 6, 7, 9, 10, 11])
    ]
    for order in (parts, parts[::-1]):
        total = encoding.zero_sum()
        for part in order:
            encoding.add(total, part)
        assert (total == together).all()


def in_torch(updates: ClippedUpdates, device: str) -> ClippedUpdates:
    values = torch.from_numpy(updates.values).to(device)
    factors = torch.from_numpy(updates.factors).to(device)
    return ClippedUpdates(updates.round_index, updates.device_ids, values, factors)


ON_DEVICES = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
            ],
        ),
    ],
)


@ALL
@pytest.mark.parametrize("dimension", [1, 5, 64, 1000, 5000])
@pytest.mark.parametrize("at_once", [1 << 24, 1])
@ON_DEVICES
def test_a_sum_in_torch_is_that_of_the_compiled_code(
    kind: str, dimension: int, at_once: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, with a device whose update is not finite, a device without an update, and a sum that other devices began."""
    monkeypatch.setattr(tensors, "_AT_ONCE", at_once)
    encoding, updates = made(kind, dimension), updates_of(DEVICES, dimension, 0.3, round_index=70)
    updates.values[2, 0] = np.nan
    updates.factors[2] = 0.0
    total = encoded(encoding, updates, 0.3)
    sum_in_torch = torch.from_numpy(total.copy()).to(device)
    encoding.encode_into(total, updates, 0.3)
    encoding.encode_into(sum_in_torch, in_torch(updates, device), 0.3)
    silent = np.array([5, 2**40 + 3], np.uint64)
    encoding.encode_zeros_into(total, silent, 70)
    encoding.encode_zeros_into(sum_in_torch, silent, 70)
    assert total.any()
    assert (sum_in_torch.cpu().numpy() == total).all()


@ON_DEVICES
def test_a_sum_in_torch_refuses_an_update_that_was_not_clipped(device: str) -> None:
    """It names the device; far beyond the bound the exact sum of squares would overflow."""
    encoding = made("secagg, more room", 100)
    for length in (1.2, 1e8):
        values = np.full((3, 100), 0.01, np.float32)
        values[1] = length / 10
        updates = ClippedUpdates(2, np.array([8, 9, 7], np.uint64), values, np.ones(3))
        total = torch.from_numpy(encoding.zero_sum()).to(device)
        with pytest.raises(ValueError, match="of device 9 in round 2 is longer than clip_norm=1"):
            encoding.encode_into(total, in_torch(updates, device), 1.0)


@WITHOUT_NOISE
def test_devices_without_a_usable_update_add_zero(kind: str) -> None:
    values = np.array([[np.nan, 1.0], [np.inf, 0.0], [0.25, 0.0]], np.float32)
    factors = clip_whole(values, Clip(1.0)).factors
    updates = ClippedUpdates(0, np.arange(3, dtype=np.uint64), values, factors)
    encoding = made(kind, 2)
    total = encoded(encoding, updates, 1.0)
    assert (total == encoded(encoding, rows(updates, [2]), 1.0)).all()
    nothing = encoded(encoding, rows(updates, [0, 1]), 1.0)
    assert (nothing == encoding.zero_sum()).all()
    assert (encoding.decode(nothing, 1.0, 0) == 0).all()


@WITHOUT_NOISE
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    dimension=st.integers(1, 300),
    clip_norm=st.floats(1e-3, 1e3),
    length=st.floats(1e-6, 1e6),
    is_sparse=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_no_device_contributes_more_than_is_said(
    kind: str, dimension: int, clip_norm: float, length: float, is_sparse: bool, seed: int
) -> None:
    """The property on which privacy rests, for dense updates and for those with one coordinate; 1e-6 is for float32."""
    encoding, rng = made(kind, dimension), np.random.default_rng(seed)
    value = np.eye(dimension)[0] if is_sparse else rng.normal(size=dimension) / dimension**0.5
    values = (value * clip_norm * length)[None].astype(np.float32)
    factors = clip_whole(values, Clip(clip_norm)).factors
    updates = ClippedUpdates(5, np.array([seed], np.uint64), values, factors)
    decoded = encoding.decode(encoded(encoding, updates, clip_norm), clip_norm, 5)
    norm = float(np.linalg.norm(decoded.astype(np.float64)))
    assert norm <= encoding.contribution_norm(clip_norm) * (1 + 1e-6)


@WITHOUT_NOISE
@pytest.mark.parametrize("dimension", [1, 2, 3, 100, 5000])
@pytest.mark.parametrize("clip_norm", [0.01, 30.0])
def test_what_is_decoded_is_the_sum_within_the_stated_error(
    kind: str, dimension: int, clip_norm: float
) -> None:
    encoding, updates = made(kind, dimension), updates_of(DEVICES, dimension, clip_norm)
    decoded = encoding.decode(encoded(encoding, updates, clip_norm), clip_norm, 3)
    assert (decoded.dtype, decoded.shape) == (np.float32, (dimension,))
    exact = exact_sum(updates)
    error = np.linalg.norm(decoded - exact)
    float32 = 2.0**-24 * np.linalg.norm(exact)
    assert error <= clip_norm * ERRORS[kind](dimension, DEVICES) + float32
    assert np.linalg.norm(exact) > 0.5 * clip_norm  # so that zero would not pass


@ALL
def test_the_norm_of_a_contribution_is_in_proportion_to_the_clip_norm(kind: str) -> None:
    encoding = made(kind, 1000)
    assert encoding.contribution_norm(1.0) >= 1.0
    assert encoding.contribution_norm(0.3) == pytest.approx(0.3 * encoding.contribution_norm(1.0))


@ALL
def test_what_is_sent_is_counted_in_bits(kind: str) -> None:
    assert 1.0 <= made(kind, 1000).bits_per_parameter <= 128.0
