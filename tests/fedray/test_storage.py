"""Places of files: what a URI names, and what is refused before anything is made."""

import inspect
from pathlib import Path
from typing import get_args

import pytest

from fedray.base.errors import InputError
from fedray.base.storage import local_path
from fedray.cli import GROUPS
from fedray.commands.frame.shared import FLAGS


def _places() -> list[tuple[str, str]]:
    """Every command with each of its arguments and options that is a path; an argument is empty."""
    return sorted(
        {
            (
                function.__name__.rstrip("_").replace("_", "-"),
                FLAGS.get(name, f"--{name.replace('_', '-')}")
                if parameter.kind is parameter.KEYWORD_ONLY
                else "",
            )
            for functions in GROUPS.values()
            for function in functions
            for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
            if {Path, list[Path]} & {parameter.annotation, *get_args(parameter.annotation)}
        }
    )


@pytest.mark.parametrize(("command", "option"), _places())
def test_every_path_of_every_command_refuses_an_unknown_scheme(
    command: str, option: str, fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = fedray_command(command, *filter(None, [option]), "hdfs://host/x")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "'hdfs://host/x'" in err
    assert not list(tmp_path.iterdir())


def test_there_are_paths_in_most_commands() -> None:
    assert len(_places()) > 60
    assert {("run", "--out"), ("run", ""), ("budget", ""), ("compare", "")} <= set(_places())


@pytest.mark.parametrize("uri", ["s3://bucket/x", "hdfs://host/x", "https://host/x", "abfs://c/x"])
def test_functions_make_no_folder_of_a_uri(uri: str, tmp_path: Path, small, monkeypatch) -> None:
    from fedray.audit.ledger import Ledger
    from fedray.base.atomic import write_directory, write_whole
    from fedray.report.page import write_page
    from fedray.runs.pipeline import run_scenario
    from fedray.runs.simulation import simulate

    # A run goes to a bucket.
    scheme = uri.replace("s3:", "ftp:")
    monkeypatch.chdir(tmp_path)
    for make in (
        lambda: simulate(small(), out=uri),
        lambda: simulate(small(), out=Path(uri)),
        lambda: run_scenario(small("training.enabled=true"), out=scheme),
        lambda: Ledger.create(uri, 1.0, 1e-6, "quarter"),
        lambda: write_page("", uri),
        lambda: write_directory(Path(uri), {"a": b""}),
        lambda: write_whole(Path(uri), b"", "a file"),
    ):
        with pytest.raises(InputError, match="is not on this machine"):
            make()
    assert not list(tmp_path.iterdir())


def test_a_file_uri_is_a_path() -> None:
    assert local_path("file:///tmp/a%20b") == Path("/tmp/a b")
    assert local_path(Path("file:///tmp/x")) == Path("/tmp/x")
    for path in ("runs/x", "/tmp/a:b/c", "a:b", "C:/x", "blt-400"):
        assert local_path(path) == Path(path)


def test_a_ledger_is_made_and_opened_at_a_file_uri(tmp_path: Path, monkeypatch) -> None:
    from fedray.audit.ledger import Ledger

    monkeypatch.chdir(tmp_path)
    uri = (tmp_path / "ledger").as_uri()
    made = Ledger.create(uri, 1.0, 1e-6, "quarter")
    assert Ledger.open(uri) == made == Ledger.open(tmp_path / "ledger")
    assert [each.name for each in tmp_path.iterdir()] == ["ledger"]


def test_a_trace_is_read_at_a_file_uri(trace_of, fedray_command) -> None:
    trace = trace_of([[0, 2], [1]], 3)
    code, out, _ = fedray_command("audit", trace.path.as_uri(), "--json")
    assert code == 0
    assert trace.digest in out
