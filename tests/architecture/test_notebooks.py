"""The notebooks of the documentation: they run from top to bottom, and are kept without output.

Their cells are plain Python, so they run here without a kernel; of each cell the last expression is
asked for what a notebook would show.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.outside

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs" / "notebooks").glob("*.ipynb"))
ALL = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(notebook: Path, kind: str) -> list[dict[str, Any]]:
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    return [each for each in document["cells"] if each["cell_type"] == kind]


def shown(source: str, names: dict[str, Any]) -> str:
    """Runs a cell; what a notebook shows of it."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


@pytest.mark.slow
@ALL
def test_a_notebook_runs_and_shows_tables_and_figures(
    notebook: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    outputs = [shown("".join(cell["source"]), names) for cell in cells_of(notebook, "code")]
    assert sum("<table" in each for each in outputs) >= 2
    assert sum("<svg" in each for each in outputs) >= 1


@ALL
def test_a_notebook_is_kept_without_output_and_names_what_it_needs(notebook: Path) -> None:
    for cell in cells_of(notebook, "code"):
        assert not cell["outputs"]
        assert cell["execution_count"] is None
    first = "".join(cells_of(notebook, "markdown")[0]["source"])
    assert "pip install 'fedray[" in first


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.slow
def test_a_log_is_imported_in_a_notebook_that_has_no_widgets(tmp_path: Path) -> None:
    """There DuckDB refuses every setting of its progress bar; it looks for IPython when it is
    imported, so this takes a process of its own."""
    (tmp_path / "log.csv").write_text("device,round\na,0\nb,1\na,1\n")
    program = """
import sys, types
kernel = types.SimpleNamespace(config={"IPKernelApp": True}, kernel=None)
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython"].get_ipython = lambda: kernel
sys.modules["ipywidgets"] = None
import fedray
print(fedray.import_log("log.csv", "device", "round", 2, "trace").run["rows"])
"""
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == "3\n"
