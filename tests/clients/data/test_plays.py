"""Plays become roles: who says what, and nothing that is not said."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedray.base.errors import InputError
from fedray.clients.data.plays import LENGTH, roles_of, write_roles

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


def test_the_file_has_a_row_per_example_and_no_role_of_one(plays: Path, tmp_path: Path) -> None:
    (plays / "long.txt").write_text(f"ACT I\n\nANNA\t{'tea ' * 60}\n\nBEN\tNo.\n")
    file = tmp_path / "roles.parquet"
    assert write_roles(plays, file) == (1, 3)
    rows = pq.read_table(file).to_pylist()
    assert {row["client"] for row in rows} == {"long_ANNA"}
    assert [len(row["text"]) for row in rows] == [LENGTH, LENGTH, 4 * 60 - 1 - 2 * LENGTH]
    assert "".join(row["text"] for row in rows) == ("tea " * 60).strip()


def test_the_command_writes_the_file_once(plays: Path, tmp_path: Path, fedray_command) -> None:
    (plays / "long.txt").write_text(f"ACT I\n\nANNA\t{'tea ' * 60}\n")
    arguments = ["data", "shakespeare", str(plays), "--out", str(tmp_path / "roles.parquet")]
    code, out, _ = fedray_command(*arguments)
    assert code == 0
    assert "1 roles with 3 examples" in out
    code, _, problem = fedray_command(*arguments)
    assert code == 2
    assert "exists already" in problem


@pytest.mark.parametrize("text", ["", "no roles at all\n", "ACT I\n\nANNA\tToo short.\n"])
def test_a_folder_without_roles_is_refused_and_nothing_is_written(tmp_path: Path, text) -> None:
    (tmp_path / "play.txt").write_text(text)
    with pytest.raises(InputError, match="no role of 160 characters"):
        write_roles(tmp_path, tmp_path / "roles.parquet")
    assert not (tmp_path / "roles.parquet").exists()
    with pytest.raises(InputError, match="no folder with plays"):
        roles_of(tmp_path / "missing")
