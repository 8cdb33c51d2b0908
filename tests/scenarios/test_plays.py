"""Plays become roles: who says what, and nothing that is not said."""

import string
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.base.errors import InputError
from fedray.scenarios import shakespeare
from fedray.scenarios.plays import LENGTH, examples_of, roles_of

TABBED = """\tTHE KETTLE

\tDRAMATIS PERSONAE

ANNA\tA cook.
BEN\tHer brother.

ACT I

\tTHE KETTLE

SCENE I\tA kitchen. ANNA asleep.

\t[Enter BEN, who looks
\tfor the kettle]

BEN\tWhere is the kettle? It was here at noon,
\tAnd now [lifts a lid] the stove is cold. O sister,
\t[Aside]
\tWake up!

ANNA\tI dreamt of tea.

\t[Exit BEN]

ACT II

PROLOGUE\tNow hear how it went on.

SCENE I\tThe same.

FIRST NEIGHBOUR\tThe whole street smells of tea.
ANNA\tAt last.
"""
DOTTED = """PROLOGUE

ACT I

SCENE I. A garden.

ANNA.
The roses want water. I. Am. TIRED. So be it,
And so are the beans.

MRS. GREEN.
[To herself] They are Anna's beans.

BEN. I have the can.
Here it comes.
"""


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    folder = tmp_path / "plays"
    folder.mkdir()
    (folder / "kettle.txt").write_text(TABBED)
    (folder / "garden.txt").write_text(DOTTED)
    return folder


def test_a_role_has_every_line_that_it_says_and_no_heading_or_direction(plays: Path) -> None:
    assert roles_of(plays) == {
        "garden_ANNA": "The roses want water. I. Am. TIRED. So be it,\nAnd so are the beans.",
        "garden_MRS. GREEN": "They are Anna's beans.",
        "garden_BEN": "I have the can.\nHere it comes.",
        "kettle_BEN": "Where is the kettle? It was here at noon,\n"
        "And now  the stove is cold. O sister,\nWake up!",
        "kettle_ANNA": "I dreamt of tea.\nAt last.",
        "kettle_PROLOGUE": "Now hear how it went on.",
        "kettle_FIRST NEIGHBOUR": "The whole street smells of tea.",
    }


def test_plays_are_read_whatever_their_files_are_called(plays: Path) -> None:
    found = roles_of(plays)
    (plays / "garden.txt").rename(plays / "garden.TXT")
    (plays / "kettle.txt").rename(plays / "kettle")
    assert roles_of(plays) == found


def test_a_role_of_one_example_is_left_out(plays: Path) -> None:
    (plays / "long.txt").write_text(f"ACT I\n\nANNA\t{'tea ' * 60}\n\nBEN\tNo.\n")
    examples = examples_of(plays)
    assert {role for role, _ in examples} == {"long_ANNA"}
    assert [len(text) for _, text in examples] == [LENGTH, LENGTH, 4 * 60 - 1 - 2 * LENGTH]
    assert "".join(text for _, text in examples) == ("tea " * 60).strip()


@pytest.mark.parametrize("text", ["", "no roles at all\n", "ACT I\n\nANNA\tToo short.\n"])
def test_a_folder_without_roles_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "play.txt").write_text(text)
    says = "no role of 160 characters" if text.startswith("ACT") else r"play\.txt' has no role"
    with pytest.raises(InputError, match=says):
        examples_of(tmp_path)
    with pytest.raises(InputError, match="no folder with plays"):
        roles_of(tmp_path / "missing")


def test_a_folder_of_plays_gives_the_roles_of_its_parquet_file(tmp_path: Path) -> None:
    """As `fedray reproduce shakespeare --data` takes them."""
    folder = tmp_path / "plays"
    folder.mkdir()
    names = [f"ROLE {letter}" for letter in string.ascii_uppercase]
    speeches = "".join(f"{name}\t{name.lower()} {'says ' * 40}\n\n" for name in names)
    (folder / "play.txt").write_text(f"ACT I\n\n{speeches}")
    rows = [{"client": role, "text": text} for role, text in examples_of(folder)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "roles.parquet")
    found = shakespeare.roles_of(folder)
    assert found == shakespeare.roles_of(tmp_path / "roles.parquet")
    assert len(found.trained) + len(found.held_out) == 26
