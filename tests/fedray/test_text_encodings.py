"""Text files of users: a byte order mark changes nothing, and UTF-16 is refused by that name."""

from pathlib import Path

import pytest

from fedray.audit.claims import read_claim
from fedray.base.errors import InputError
from fedray.base.parsing import decode_text, parse_json, parse_toml
from fedray.clients.data.form import read_vocabulary
from fedray.clients.data.readers.reader import Damaged
from fedray.scenario import Scenario

CLAIM = "mechanism = 'tree'\nnoise_multiplier = 2.0\nmin_sep = 3\n"
SCENARIO = "name = 'marked'\n[population]\ndevices = 2000\n[rounds]\ncount = 1\nreport_goal = 100\n"
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32")


def test_a_byte_order_mark_is_not_part_of_a_text() -> None:
    assert decode_text("\ufeffé\ufeff".encode()) == "é\ufeff"
    assert parse_toml("\ufeffa = 1".encode()) == {"a": 1}
    assert parse_json('\ufeff{"a": 1}'.encode()) == {"a": 1}


def test_files_with_and_without_a_byte_order_mark_say_the_same(tmp_path: Path) -> None:
    for name, text in (("plain", ""), ("marked", "\ufeff")):
        (tmp_path / f"{name}-claim.toml").write_text(text + CLAIM, encoding="utf-8")
        (tmp_path / f"{name}.toml").write_text(text + SCENARIO, encoding="utf-8")
        (tmp_path / f"{name}.py").write_text(text + "def task(seed): ...\n", encoding="utf-8")
    plain, marked = (read_claim(tmp_path / f"{name}-claim.toml") for name in ("plain", "marked"))
    assert plain == marked
    populations = []
    for name in ("plain", "marked"):
        custom = ["training.task.kind=custom", f"training.task.file={tmp_path / name}.py"]
        populations.append(Scenario.from_toml(tmp_path / f"{name}.toml", custom).population)
    assert populations[0] == populations[1]


@pytest.mark.parametrize("encoding", WIDE)
def test_utf_16_is_refused_by_that_name(tmp_path: Path, encoding: str) -> None:
    for name, text in (("claim.toml", CLAIM), ("scenario.toml", SCENARIO), ("words.txt", "the\n")):
        (tmp_path / name).write_bytes(text.encode(encoding))
    with pytest.raises(InputError, match="it is UTF-16; convert it to UTF-8"):
        read_claim(tmp_path / "claim.toml")
    with pytest.raises(InputError, match="it is UTF-16; convert it to UTF-8"):
        Scenario.from_toml(tmp_path / "scenario.toml")
    with pytest.raises(Damaged, match="it is UTF-16; convert it to UTF-8"):
        read_vocabulary(tmp_path / "words.txt")


@pytest.mark.parametrize(
    "content",
    [
        "the\na\nof\n",
        "\ufeffthe\na\nof\n",
        "the \na\t\n of\n",
        "\ufeffthe\r\na\r\nof\r\n",
        "the\u00a0\n\u2003a\n\n  \nof",
    ],
)
def test_words_of_a_list_have_no_white_space_around_them(tmp_path: Path, content: str) -> None:
    """Text is split at white space, so such words would all count as unknown."""
    (tmp_path / "words.txt").write_text(content, encoding="utf-8", newline="")
    assert read_vocabulary(tmp_path / "words.txt") == ("the", "a", "of")


@pytest.mark.parametrize(
    ("content", "unit", "expected"),
    [
        ("the\nNew York\n", "word", r"has 'New York' in line 2, not a single word"),
        ("the\nNew\u2028York\n", "word", r"has 'New\\u2028York' in line 2, not a single"),
        ("the\na\ufeffb\n", "word", r"has 'a\\ufeffb' in line 2, not a single word"),
        ("the\n\ufeff\n", "word", r"has '\\ufeff' in line 2, not a single word"),
        ("the\nthe \n", "word", "has 'the' twice"),
        (" \n\n", "word", "has no words"),
        ("a\nbc\n", "character", "has 'bc' in line 2, not a single character"),
        ("a\n \n \n", "character", "has ' ' twice"),
    ],
)
def test_words_that_no_text_can_contain_are_refused(
    tmp_path: Path, content: str, unit: str, expected: str
) -> None:
    (tmp_path / "words.txt").write_text(content, encoding="utf-8")
    with pytest.raises(Damaged, match=expected):
        read_vocabulary(tmp_path / "words.txt", unit)


def test_white_space_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("e\r\n \r\n\u00a0\r\n", encoding="utf-8", newline="")
    assert read_vocabulary(tmp_path / "letters.txt", "character") == ("e", " ", "\u00a0")
