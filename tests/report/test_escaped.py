"""No word of a stranger reaches a terminal, a page or a document with characters or markup that it would execute."""

import ast
from pathlib import Path

import pytest

import fedray
from fedray.base.escaped import html_text, markdown_text, printable, printable_lines
from fedray.commands.frame.output import print_line, print_pieces
from fedray.report.page import render_fragment
from fedray.report.progress import show_progress
from fedray.report.table import Paragraph, Table

EVIL = "\x1b]0;owned\x07\x9b2J\x00\r\n\u202eword\x7f"
CONTROLS = set("\x00\x07\x0b\x0c\r\x1b\x7f\x9b\u202e")


def is_harmless(text: str) -> bool:
    return not set(text) & CONTROLS and all(map(str.isprintable, text.split("\n")))


@pytest.mark.parametrize("name", ["plain", "é 漢 -_.", ""])
def test_printable_text_stays(name: str) -> None:
    assert printable(name) == printable_lines(name) == html_text(name) == name


def test_escapes_say_what_they_stand_for() -> None:
    assert printable("a\x1b\n\u202e\ud800") == r"a\x1b\n\u202e\ud800"
    assert printable_lines("a\x1b\nb") == "a\\x1b\nb"
    assert html_text("<\x00>") == r"&lt;\x00&gt;"
    assert markdown_text("a\n# b|*\x1b") == r"a \# b\|\*\\x1b"


@pytest.mark.parametrize(
    "piece",
    [
        Table(EVIL, ("head", EVIL), ((EVIL, "1"), ("b", EVIL)), (EVIL,)),
        Table(EVIL, ("head", EVIL), ((EVIL, EVIL * 20),)),
        Table.facts(EVIL, [(EVIL, EVIL)], EVIL),
        Paragraph(EVIL, EVIL),
        EVIL,
    ],
)
def test_the_terminal_gets_no_control_characters(piece, capsys) -> None:
    print_pieces([piece])
    print_line(EVIL, EVIL, err=True)
    captured = capsys.readouterr()
    assert is_harmless(captured.out)
    assert is_harmless(captured.err)
    assert r"\x1b" in captured.out
    assert captured.err.count("\n") == 2


def test_a_cell_stays_on_its_line() -> None:
    text = str(Table("", ("a", "b"), (("x\ny", "1"), ("z", "2"))))
    assert [line.split() for line in text.split("\n")[2:]] == [[r"x\ny", "1"], ["z", "2"]]


def test_progress_gets_no_control_characters(capsys) -> None:
    listen = show_progress(EVIL)
    listen._last -= 100  # pyright: ignore[reportFunctionMemberAccess]
    listen(EVIL)
    found = capsys.readouterr().err
    assert found
    assert is_harmless(found)


def test_a_page_gets_no_control_characters() -> None:
    table = Table(EVIL, ("a", EVIL), (("<b>", EVIL),), (EVIL,))
    found = render_fragment(EVIL, [table])
    assert is_harmless(found.replace("\t", ""))
    assert r"\x1b" in found
    assert "&lt;b&gt;" in found


def test_the_page_of_an_audit_gets_no_control_characters(trace_of, small) -> None:
    scenario = small().model_copy(update={"description": EVIL})
    page = fedray.audit_trace(trace_of([[0, 2], [1]], 3, scenario)).page()
    assert is_harmless(page)


def test_columns_of_a_log_are_escaped(tmp_path: Path, fedray_command) -> None:
    (tmp_path / "log.csv").write_text('device,round,"\x1b[31m\x07x"\na\x1b[2J,0,\x1b]0;t\x07\n')
    given = ("--column", "device=device", "--column", "round=round", "--rounds", "logged")
    _, out, err = fedray_command("import", str(tmp_path / "log.csv"), "--inspect", *given)
    assert is_harmless(out + err)
    assert r"\x1b[31m" in out


def test_only_the_printer_of_a_command_writes_text_that_is_not_its_own() -> None:
    """Elsewhere `typer.echo` gets constants, messages of `one_line`, or a document."""
    folder = Path(fedray.__file__).parent / "commands"
    own = {"output.py", "exit_codes.py", "fit_log.py", "cache.py", "status.py", "optimize.py"}
    for file in sorted([*folder.glob("*.py"), *folder.glob("studies/*.py")]):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.echo":
                assert file.name in own or isinstance(node.args[0], ast.Constant), file.name
