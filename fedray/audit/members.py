"""Members of a task (`participation.members`), drawn again from the definition in
`fedray/base/rng.py`: the audit shares no code with the simulator (`fedray/wire/members.py`)."""

import hashlib

import numpy as np

from fedray.base.arrays import BoolArray, UInt64Array
from fedray.scenario import Scenario
from fedray.scenario.participation import EVERYBODY

_STREAM = 122
"""Number of the stream of this draw. Streams are part of every trace, so it never changes."""
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)


def are_members(scenario: Scenario, device_ids: UInt64Array) -> BoolArray:
    """Returns which devices [N] may serve a scenario, [N]."""
    if scenario.participation.members == EVERYBODY:
        return np.ones(device_ids.size, np.bool_)
    low, high = scenario.participation.members
    words = first_words(scenario.seed, _STREAM, device_ids)
    drawn = (words >> np.uint64(11)) * 2.0**-53
    return (low <= drawn) & (drawn < high)


def first_words(seed: int, stream: int, device_ids: UInt64Array) -> UInt64Array:
    """Returns the first two words, of 32 bits each, that a stream of a seed draws for devices [N],
    as one of 64 bits, [N]."""
    key = hashlib.blake2b(f"{seed}:{stream}".encode(), digest_size=8).digest()
    # The arrays between take ten times the memory of the ids, so a million are drawn at once.
    parts = np.array_split(device_ids, device_ids.size // 10**6 + 1)
    return np.concatenate([_first_words(key, part) for part in parts])


def _first_words(key: bytes, device_ids: UInt64Array) -> UInt64Array:
    """Returns the first two words of Philox4x32-10 (Salmon et al. 2011) at the counter (device, 0,
    0), as one of 64 bits [N].

    Args:
        key: the key, 8 bytes.
        device_ids: [N].
    """
    k0, k1 = np.frombuffer(key, "<u4").astype(np.uint64)
    c0, c1 = device_ids & _LOW, device_ids >> _HALF
    c2 = c3 = np.zeros_like(device_ids)
    for _ in range(10):
        product0, product2 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = (product2 >> _HALF) ^ c1 ^ k0, product2 & _LOW
        c2, c3 = (product0 >> _HALF) ^ c3 ^ k1, product0 & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return (c0 << _HALF) | c1
