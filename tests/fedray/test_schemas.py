"""What is told of files follows from the classes: `fedray schema` and `fedray init`."""

import json
import tomllib
from pathlib import Path

import pytest

from fedray.scenario import Scenario
from fedray.scenario.keys import tables_of
from fedray.scenario.literals import literal
from fedray.scenario.shipped import find_scenario


def test_every_key_of_every_table_has_a_meaning() -> None:
    silent = [
        f"{each.path} ({each.kind}): {key.name}"
        for each in tables_of()
        for key in each.keys
        if not key.meaning
    ]
    assert not silent


def test_a_key_has_its_bounds_unit_and_default() -> None:
    (participation,) = (each for each in tables_of() if each.path == "participation")
    told = {key.name: (key.type, key.unit, key.default) for key in participation.keys}
    assert told["timer_hours"] == ("number >= 0, <= 87840", "hours", "72.0")
    assert told["policies"] == ("list of table", "", "left out")
    assert told["history_loss"] == ("cleared | corrupted", "", "left out")


@pytest.mark.parametrize(
    "value",
    ['a "b" \\ \n \x7f \u00e9', True, 1e-10, -3, [], {}, [{"a": [1.5, "x"]}, {"b c.": {"": 1}}]],
)
def test_a_literal_is_read_back_as_the_value(value) -> None:
    assert tomllib.loads(f"key = {literal(value)}")["key"] == value


def test_init_writes_the_small_scenario(fedray_command, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    code, _, _ = fedray_command("init", str(file))
    written = Scenario.from_toml(file)
    small = Scenario.from_toml(find_scenario("small"))
    assert code == 0
    assert (written.digest, written.name, written.description) == (small.digest, "mine", "")
    assert "\n# To grow, raise it together" in file.read_text()
    code, out, err = fedray_command("init", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "exists already" in err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("participation", "timer_hours"),
        ("mechanism", "theta"),
        ("scenario", "seed"),
        ("rounds.parquet", "eligible_estimate"),
        ("sweep", "vary"),
        ("sweep", "made_for"),
        ("sweep.mechanisms", "buffers"),
    ],
)
def test_schema_tells_a_table_in_words_and_as_json(
    name: str, expected: str, fedray_command
) -> None:
    code, out, _ = fedray_command("schema", name)
    assert code == 0
    assert expected in out
    code, out, _ = fedray_command("schema", name, "--json")
    rows = [row["name"] for part in json.loads(out)["parts"] for row in part["rows"]]
    assert (code, expected in rows) == (0, True)


def test_an_unknown_table_is_refused_with_the_nearest_first(fedray_command) -> None:
    code, out, _ = fedray_command("schema", "data.parquet", "--json")
    assert [part["kind"] for part in json.loads(out)["parts"]] == ["kind = parquet"]
    assert code == 0
    code, _, err = fedray_command("schema", "rounds.zip")
    assert (code, err) == (2, "fedray: kind='zip' is of no use: rounds has one kind\n")
    code, out, err = fedray_command("schema", "rouds")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is unknown; choose from rounds, " in err
