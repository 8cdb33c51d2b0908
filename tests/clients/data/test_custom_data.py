"""A user's own source or partitions, and what may be wrong with them; the standard library's source."""

from pathlib import Path

import numpy as np
import pytest
from data_contract import CHECKS

from fedray.base.errors import InputError
from fedray.clients.data.factory import source_of
from fedray.clients.data.source import FIRST_HELD_OUT
from fedray.scenario import standard_library

SOURCE = """
import numpy as np
from fedray.clients.data.source import Field


class data:
    fields = {"inputs": Field((2,), "real"), "targets": Field((), "whole", 3)}
    held_out_devices, optimum = 100, {}

    def __init__(self, seed):
        self.seed = seed

    def examples_on(self, device_ids):
        return (device_ids % np.uint64(4) + np.uint64(1)).astype(np.int64)

    def examples(self, device_ids, positions):
        mixed = device_ids.astype(np.int64)[:, None] * 7 + positions * 3 + self.seed
        inputs = np.stack([mixed, -mixed], axis=-1).astype(np.float32)
        return {"inputs": inputs, "targets": mixed % 3}
"""
PARTITIONS = """
import numpy as np


class Partitions:
    num_partitions = 12

    def load_partition(self, partition_id):
        count = partition_id % 3 + 1
        return {"inputs": np.full((count, 2), partition_id), "targets": [partition_id % 2] * count}


def data(seed):
    return Partitions()
"""


TABLE = {"kind": "custom", "file": "data.py"}


def table(folder: Path, code: str) -> dict[str, str]:
    (folder / "data.py").write_text(code)
    return TABLE


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("code", [SOURCE, PARTITIONS])
def test_ones_own_data_keeps_the_contract(code: str, check, tmp_path: Path, scenario_of) -> None:
    scenario = scenario_of(table(tmp_path, code))
    check(lambda: source_of(scenario))


def test_every_partition_is_a_client(tmp_path: Path, source) -> None:
    found = source({**table(tmp_path, PARTITIONS), "held_out_share": 0.25})
    assert found.held_out_devices == 3
    devices = np.append(
        np.arange(9, dtype=np.uint64), FIRST_HELD_OUT + np.arange(3, dtype=np.uint64)
    )
    inputs = found.examples(devices, np.zeros((12, 1), np.int64))["inputs"][:, 0, 0]
    assert sorted(inputs) == list(range(12))
    assert (found.examples_on(devices) == inputs % 3 + 1).all()
    assert found.fields["targets"].values == 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1", "has no function 'data'"),
        ("def data(seed):\n    raise KeyError(seed)", "data() failed: KeyError: 3"),
        ("def data(seed):\n    return 3", "gave a int without fields, held_out_devices"),
        (SOURCE.replace("+ np.uint64(1)).astype(np.int64)", ") * 1.5"), "a whole number for each"),
        (SOURCE.replace('{"inputs": Field((2,), "real")', '{"inputs": 3'), "must be fedray.clients.data"),
        (SOURCE.replace("device_ids % ", "no_such % "), "examples_on() failed: NameError"),
        (PARTITIONS.replace("partition_id % 3 + 1", "(partition_id != 5) // (partition_id != 5)"), "partition 5 cannot be loaded (ZeroDivisionError"),
        (PARTITIONS.replace('"targets"', '"labels"'), "partition 0 cannot be loaded (KeyError"),
        (PARTITIONS.replace("= 12", "= 0"), "the data has no clients"),
        (PARTITIONS.replace("[partition_id % 2]", '["a"]'), "has values that are not numbers"),
        (PARTITIONS.replace("[partition_id % 2]", "[partition_id - 3]"), "outside 0 to 2^40"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_ones_own_data_is_one_line(
    code: str, says: str, tmp_path: Path, source
) -> None:
    with pytest.raises(InputError) as told:
        source(table(tmp_path, code))
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_examples_of_another_shape_are_refused(tmp_path: Path, source) -> None:
    found = source(table(tmp_path, SOURCE.replace("[mixed, -mixed]", "[mixed]")))
    with pytest.raises(InputError, match="of shape \\(1, 1, 1\\), not \\(1, 1, 2\\)"):
        found.examples(np.zeros(1, np.uint64), np.zeros((1, 1), np.int64))


@pytest.mark.parametrize("made", ["mixed % 3 + 1", "mixed % 3 - 3"])
def test_whole_numbers_that_their_field_does_not_have_are_refused(
    made: str, tmp_path: Path, source
) -> None:
    """Compiled steps read rows of tables by them."""
    found = source(table(tmp_path, SOURCE.replace("mixed % 3", f"({made})")))
    ids, positions = np.arange(6, dtype=np.uint64), np.zeros((6, 1), np.int64)
    with pytest.raises(InputError, match="gave 'targets' from .* says 3 values: 0 to 2"):
        found.examples(ids, positions)


@pytest.fixture
def small_library(tmp_path: Path, monkeypatch):
    """A standard library of three modules in place of the real one."""
    root = tmp_path / "lib"
    (root / "json").mkdir(parents=True)
    (root / "abc.py").write_text("import os\n\ndef f(x1):\n    return x1 + 12\n")
    (root / "json" / "__init__.py").write_text("import os\nimport sys\n")
    (root / "site.py").write_text("import sys\n")
    monkeypatch.setattr(
        standard_library.sys, "stdlib_module_names", {"abc", "json", "site", "gone"}
    )
    monkeypatch.setattr(standard_library.sysconfig, "get_paths", lambda: {"stdlib": str(root)})
    standard_library.standard_library.cache_clear()
    yield root
    standard_library.standard_library.cache_clear()


def test_source_code_is_lines_of_words(small_library: Path, source, scenario_of) -> None:
    wanted = {"kind": "source_code", "length": 5, "held_out_share": 0.1}
    found = source(wanted)
    assert found.held_out_devices == 1
    devices = np.append(np.arange(2, dtype=np.uint64), FIRST_HELD_OUT)
    assert sorted(found.examples_on(devices)) == [1, 2, 3]
    full = devices[found.examples_on(devices) == 3]
    lines = found.examples(full, np.array([[0, 1, 2]]))["tokens"][0]
    assert lines.shape == (3, 6)
    assert (lines[:, 0] == 2).all()
    assert (lines[0] != 0).sum() == 4  # START, import, os, END
    assert (lines[1] != 0).all()
    recorded = scenario_of(wanted).data.sha256  # pyright: ignore[reportAttributeAccessIssue]
    (small_library / "site.py").write_text("import re\n")
    standard_library.standard_library.cache_clear()
    with pytest.raises(InputError, match="not the digest of this Python's standard library"):
        source({**wanted, "sha256": recorded})


@pytest.mark.slow
def test_the_real_library_has_text_for_hundreds_of_clients(source) -> None:
    found = source({"kind": "source_code", "vocabulary": 1000, "length": 10})
    assert found.held_out_devices > 40
    tokens = found.examples(np.arange(20, dtype=np.uint64), np.zeros((20, 1), np.int64))["tokens"]
    assert (tokens[:, 0, 1:] != 1).mean() > 0.02
    assert found.fields["tokens"].values == 1004


SOURCE_CODE = {"kind": "source_code", "vocabulary": 5}


@pytest.mark.parametrize("check", CHECKS)
def test_source_code_keeps_the_contract(check, small_library: Path, scenario_of) -> None:
    scenario = scenario_of(SOURCE_CODE)
    check(lambda: source_of(scenario))
