"""Values of devices: pure functions of the scenario, beside readable twins."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare, norm

from fedray.base.errors import InputError, ScenarioError
from fedray.base.rng import Stream, draw, normal, poisson, stream_key, uniform
from fedray.clients.data.factory import source_of
from fedray.clients.values.values import Values, held_by, occurrences, of_rows, values_of
from fedray.mechanisms.questions.question import Items
from fedray.scenario import Scenario

CODE = "import numpy as np\ndef values(device_ids, seed):\n    "
EXAMPLES = {
    "numbers": {"kind": "numbers", "mean": 2.0, "per_zone_hour": 0.5, "by_habit": 3.0},
    "words": {"kind": "words", "words": 500, "per_device": 3.0, "of_zone": 0.4},
    "examples": {"kind": "examples", "most_examples": 3},
    "custom": {"kind": "custom", "file": "values.py"},
}
"""A table of every kind of values."""


def scenario(values: dict, folder: Path = Path(), **tables: dict) -> Scenario:
    return Scenario.from_tables(
        {
            "seed": 3,
            "population": {
                "devices": 150_000,
                "time_zones": [
                    {"utc_offset_hours": -6.0, "share": 0.5},
                    {"utc_offset_hours": 8.0, "share": 0.5},
                ],
            },
            "rounds": {
                "mode": "upload-then-train",
                "count": 1,
                "report_goal": 10,
                "uploads": {"window_hours": 4.0, "schedule": {"kind": "all"}},
            },
            "analytics": {
                "question": {"kind": "count"},
                "values": values,
                "trust": [{"kind": "server"}],
                "epsilon": 1.0,
            },
            **tables,
        },
        directory=folder,
    )


def custom(folder: Path, body: str) -> Values:
    (folder / "values.py").write_text(CODE + body)
    return values_of(scenario(EXAMPLES["custom"], folder))


@pytest.fixture(params=EXAMPLES.values(), ids=lambda each: each["kind"])
def values(request, tmp_path: Path) -> Values:
    (tmp_path / "values.py").write_text(
        f"{CODE}ids = device_ids.astype(np.int64)\n    keys = np.repeat(ids, ids % 3)\n"
        "    return ids % 3, keys, 0.5 * keys\n"
    )
    return values_of(scenario(request.param, tmp_path))


def test_what_a_device_holds_does_not_depend_on_who_is_asked_with_it(values: Values) -> None:
    ids = np.array([0, 1, 2, 5, 70_000, 149_999], np.uint64)
    together = values.on(ids)
    assert together.devices == ids.size
    for row, device in enumerate(ids):
        alone = values.on(np.array([device], np.uint64))
        own = slice(together.starts[row], together.starts[row + 1])
        assert together.keys[own].tolist() == alone.keys.tolist()
        assert together.values[own].tolist() == alone.values.tolist()
    assert all(isinstance(values.label(int(key)), str) for key in together.keys[:3])


def test_many_devices_are_asked_block_by_block(values: Values) -> None:
    ids = np.arange(65_000, 66_500, dtype=np.uint64)
    whole, parts = held_by(values, ids), [values.on(ids[:700]), values.on(ids[700:])]
    assert whole.keys.tolist() == [key for part in parts for key in part.keys.tolist()]
    counts = [count for part in parts for count in np.diff(part.starts).tolist()]
    assert np.diff(whole.starts).tolist() == counts
    rows = np.array([0, 3, 900, 1499])
    some = of_rows(whole, rows)
    alone = [values.on(ids[row : row + 1]).keys.tolist() for row in rows]
    assert some.keys.tolist() == [key for keys in alone for key in keys]


def test_numbers_follow_zone_and_habit() -> None:
    """The slopes by least squares; false alarms: 1e-6 each."""
    from fedray.clients.population import habits_on
    from fedray.wire.zones import zone_offsets_on

    value = scenario(EXAMPLES["numbers"])
    ids = np.arange(40_000, dtype=np.uint64)
    numbers = held_by(values_of(value), ids).values
    columns = np.stack(
        [np.ones(ids.size), zone_offsets_on(value, ids), habits_on(value, ids) - 0.5], axis=1
    )
    found, squares, *_ = np.linalg.lstsq(columns, numbers, rcond=None)
    errors = np.sqrt(np.diag(np.linalg.inv(columns.T @ columns)))
    assert np.all(abs(found - [2.0, 0.5, 3.0]) < norm.isf(5e-7) * errors)
    # The rest is standard normal, and a missing slope would be seen.
    assert squares[0] / ids.size == pytest.approx(1.0, abs=norm.isf(5e-7) * np.sqrt(2 / ids.size))
    assert np.all(abs(found[1:]) > 50 * errors[1:])
    key = stream_key(3, Stream.VALUES)
    twin = 2.0 + normal(draw(key, 7, 0, 0)[0]) + columns[7, 1:] @ [0.5, 3.0]
    assert numbers[7] == pytest.approx(twin, rel=1e-12)


def test_words_are_those_of_a_readable_twin() -> None:
    from fedray.wire.zones import zone_offsets_on

    value = scenario(EXAMPLES["words"])
    values, key = values_of(value), stream_key(3, Stream.VALUES)
    weights = 1.0 / np.arange(1, 501)
    edges = np.cumsum(weights / weights.sum())
    for device in range(60):
        ids = np.array([device], np.uint64)
        count = poisson(3.0, np.exp(-3.0), draw(key, device, 1, 0)[0])
        expected: Counter[str] = Counter()
        for number in range(count):
            w0, w1, _, _ = draw(key, device, 2, number)
            rank = int(np.searchsorted(edges, uniform(w0)))
            if uniform(w1) < 0.4:
                rank += round(zone_offsets_on(value, ids)[0] * 500 / 24)
            expected[f"word{rank % 500}"] += 1
        found = values.on(ids)
        assert {
            values.label(key): times for key, times in zip(found.keys, found.values, strict=True)
        } == expected


def test_words_have_a_zipf_law() -> None:
    """A chi-square test of ranks; false alarms: 1e-6. The law of another exponent is rejected."""
    values = values_of(scenario({"kind": "words", "words": 100, "per_device": 2.0}))
    found = held_by(values, np.arange(30_000, dtype=np.uint64))
    ranks = np.array([int(values.label(key)[4:]) for key in range(100)])
    counts = np.bincount(ranks[found.keys], found.values, 100)
    for exponent, passes in ((1.0, True), (0.9, False)):
        law = np.arange(1.0, 101.0) ** -exponent
        assert (chisquare(counts, law / law.sum() * counts.sum()).pvalue > 1e-6) == passes


def test_keys_of_words_are_all_numbers_and_have_names_of_their_own() -> None:
    for words in (1, 2, 7, 96, 1000):
        values = values_of(scenario({"kind": "words", "words": words}))
        assert {values.label(key) for key in range(words)} == {f"word{n}" for n in range(words)}


def test_examples_are_the_tokens_of_the_training_data() -> None:
    value = scenario(EXAMPLES["examples"])
    values, source = values_of(value), source_of(value)
    for device in (0, 9, 4711):
        ids = np.array([device], np.uint64)
        count = min(3, int(source.examples_on(ids)[0]))
        tokens = source.examples(ids, np.arange(count)[None])["tokens"][0]
        found = values.on(ids)
        expected = Counter(token for text in tokens.tolist() for token in text[1:])
        assert dict(zip(found.keys.tolist(), found.values.tolist(), strict=True)) == expected


def test_examples_of_classes_and_of_recorded_words(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    classes = values_of(scenario(EXAMPLES["examples"], data={"kind": "classes", "classes": 4}))
    found = held_by(classes, np.arange(50, dtype=np.uint64))
    assert set(found.keys.tolist()) == {0, 1, 2, 3}
    rows = [{"client": f"c{n}", "text": text} for n in range(20) for text in ("new word", "new")]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    (tmp_path / "words.txt").write_text("new\nword\n")
    data = {"kind": "parquet", "file": str(tmp_path / "d.parquet"), "tokens": "text"}
    data["vocabulary_file"] = str(tmp_path / "words.txt")
    recorded = values_of(scenario(EXAMPLES["examples"], data=data))
    found = recorded.on(np.zeros(1, np.uint64))
    named = {
        recorded.label(key): times for key, times in zip(found.keys, found.values, strict=True)
    }
    assert named == {"new": 2.0, "word": 1.0}
    with pytest.raises(InputError, match=r"data.kind='points'.*needs data with tokens or classes"):
        values_of(scenario(EXAMPLES["examples"], data={"kind": "points"}))


def test_occurrences_count_each_key_of_a_device_once() -> None:
    found = occurrences(np.array([3, 0, 2]), np.array([5, 2, 5, 0, 0]))
    assert (found.starts.tolist(), found.keys.tolist()) == ([0, 2, 2, 3], [2, 5, 0])
    assert found.values.tolist() == [1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("return 1", "failed: TypeError"),
        ("return device_ids, device_ids", "returns \\(counts, keys, values\\)"),
        ("return [1] * 3, [1] * 2, [1.0] * 2", "as many keys and values as they sum to"),
        ("return [1.5] * 2, [1] * 3, [1.0] * 3", "whole numbers as counts and keys"),
        ("return [1] * 2, [1] * 2, ['a', 'b']", "and real values"),
        ("return [1] * 2, [1] * 2, [1.0, np.nan]", "finite values"),
    ],
)
def test_what_custom_values_return_is_checked(tmp_path: Path, body: str, rule: str) -> None:
    with pytest.raises(ScenarioError, match=rule):
        custom(tmp_path, body).on(np.arange(2, dtype=np.uint64))


def test_a_custom_file_needs_its_function(tmp_path: Path) -> None:
    (tmp_path / "values.py").write_text("x = 1")
    with pytest.raises(ScenarioError, match="no function 'values'"):
        values_of(scenario(EXAMPLES["custom"], tmp_path))
    assert isinstance(custom(tmp_path, "return [0], [], []").on(np.zeros(1, np.uint64)), Items)
