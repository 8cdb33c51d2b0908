"""What the documentation shows works: its commands, their output, its files, programs and links."""

import doctest
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedray
import fedray.base.errors
from fedray.base.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
FENCE = re.compile(r"^( *)```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OTHER_PROGRAMS = {".", "python3.11", "ray", "kubectl", "docker"}
"""Programs of `sh` blocks that are not ours; what they do is not tested."""


@dataclass(frozen=True)
class Block:
    """A fenced block: `console` is run and compared, `sh` is parsed, `toml` is read, `python` is
    executed where a page has commands that are run, and compiled elsewhere, `text` is output; a
    block with a title is a file."""

    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(language, title, dedent(text)) for _, language, title, text in found]


def hook(name: str) -> Any:
    """A module of docs/hooks, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = hook("reference")


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """The reference pages, by path."""
    return REFERENCE.pages()


@pytest.mark.slow
def test_the_reference_needs_only_the_packages_that_its_extra_installs() -> None:
    """`make docs` in a fresh clone installs the extra `docs`, and no other."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "fedray[train]" in extras["optional-dependencies"]["docs"]
    absent = [name for name, extra in EXTRAS.items() if extra not in ("train", "simulate")]
    code = (
        f"import sys\nsys.modules |= dict.fromkeys({absent})\n"
        f"sys.path.insert(0, {str(DOCS / 'hooks')!r})\nimport reference\nreference.pages()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def commands_of(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that stands below it."""
    text = block.text.replace("\\\n", "")
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


RUN = [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_and_programs_of_a_page_work_in_its_order(
    page: Path, fedray_command, tmp_path: Path, monkeypatch
) -> None:
    """In one directory, by the files that the page shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, str(page), "exec"), names)
        elif block.language == "console":
            run_console(block, fedray_command)


def run_console(block: Block, fedray_command) -> None:
    """Runs the commands of a block; all but those before an `echo $?` must succeed."""
    code = 0
    for command, expected in commands_of(block):
        if command == "echo $?":
            assert expected.strip() == str(code)
            code = 0
            continue
        assert code == 0, command
        program, *arguments = shlex.split(command)
        assert program == "fedray"
        code, printed, told = fedray_command(*arguments)
        assert code in (0, 1), told
        if expected:
            checker = doctest.OutputChecker()
            assert checker.check_output(expected, printed, SAME), f"{command}\n{printed}"
    assert code == 0


SHELL = [
    (page, line)
    for page in PAGES
    for block in blocks_of(page)
    if block.language == "sh"
    for line in block.text.replace("\\\n", "").splitlines()
]


@pytest.mark.parametrize(("page", "line"), SHELL, ids=lambda part: str(part)[:40])
def test_a_command_that_is_shown_but_not_run_has_options_that_exist(page: Path, line: str) -> None:
    program, *arguments = shlex.split(line)
    if program == "fedray":
        parse(arguments)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
    elif program == "pip":
        wanted = set(re.findall(r"\[([\w,]+)\]", line)[0].split(","))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert wanted <= set(project["optional-dependencies"])
    else:
        assert program in OTHER_PROGRAMS, line


def parse(arguments: list[str]) -> None:
    """Reads the arguments of a command without running it."""
    from typer.main import get_command

    from fedray.cli import app

    group: Any = get_command(app)
    arguments = [each for each in arguments if each != "--quiet"]
    command = group.commands[arguments[0]]
    command.make_context(arguments[0], arguments[1:])


def test_make_help_shows_every_description_in_full() -> None:
    """Also after a colon."""
    found = re.findall(r"^([a-z-]+):.*##  ?(.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert [tuple(line.split(maxsplit=1)) for line in shown.splitlines()] == found
    assert any(":" in description for _, description in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_is_of_a_kind_that_is_tested(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(page)
    assert text.count("```") == 2 * len(blocks)
    known = ("console", "sh", "toml", "python", "text")
    for block in blocks:
        assert block.title or block.language in known, block
        if block.language == "python":
            compile(block.text, str(page), "exec")


TOML = [(page, block) for page in PAGES for block in blocks_of(page) if block.language == "toml"]


@pytest.mark.parametrize(
    ("page", "block"), TOML, ids=[f"{page.stem}-{block.text[:20]!r}" for page, block in TOML]
)
def test_every_table_that_is_shown_is_valid(
    page: Path, block: Block, tmp_path: Path, monkeypatch
) -> None:
    """A part of a scenario is taken with the keys that every scenario must have, and with the files
    that it names."""
    from fedray.audit.claims import Claim
    from fedray.scenario import Scenario
    from fedray.studies.sweep.sweep import Sweep

    monkeypatch.chdir(tmp_path)
    Path("stackoverflow.sqlite").touch()
    Path("texts.parquet").touch()
    pq.write_table(pa.table({"device": [0], "start": [0], "end": [3600]}), "sessions.parquet")
    for file in filter(lambda each: each.title, blocks_of(page)):
        Path(file.title).write_text(file.text, encoding="utf-8")
    tables = tomllib.loads(block.text)
    if "trace" in tables or "runs" in tables:
        grid = {"name": "g", "trace": "t", "vary": {"privacy.delta": [1e-9]}, "x": "privacy.delta"}
        Sweep.model_validate({**grid, **tables})
    elif "vary" in tables:
        assert Sweep.from_toml(block.title)[0].cells()
    elif "noise_multiplier" in tables:
        Claim.model_validate({**tables, "mechanism": {"kind": "tree"}})
    elif "tasks" in tables:
        from fedray.scenario.several_tasks import FederatedTask

        assert [FederatedTask.model_validate(each) for each in tables["tasks"].values()]
    else:
        required = {
            "population": {"devices": 10_000_000},
            "rounds": {"count": 5, "report_goal": 100},
        }
        whole = {**required, **tables}
        for name, keys in required.items():
            whole[name] = {**keys, **whole[name]}
        privacy = whole.get("privacy", {})
        if isinstance(privacy.get("mechanism"), str):
            privacy["mechanism"] = {"kind": "tree"}
        Scenario.from_tables(whole)


def test_the_reference_has_every_key_of_every_table(generated: dict[str, str]) -> None:
    from fedray.audit.claims import Claim
    from fedray.scenario import Scenario
    from fedray.scenario.keys import tables_of

    for path, root in (("scenario", Scenario), ("claim", Claim)):
        page = generated[f"reference/{path}.md"]
        for table in tables_of(root):
            assert f"\n## {table.path or 'Top level'}" in page
            for key in table.keys:
                assert f"| `{key.name}` | " in page
                assert key.meaning, f"{table.path}.{key.name} is not described"


def test_the_reference_has_every_command_with_every_option(generated: dict[str, str]) -> None:
    from typer.main import get_command

    from fedray.cli import app

    group: Any = get_command(app)
    sections = re.split(r"^## fedray ", generated["reference/commands.md"], flags=re.MULTILINE)
    told = {section.split()[0]: section for section in sections[1:]}
    assert list(told) == list(group.commands)
    for name, command in group.commands.items():
        switches = {each for option in command.params for each in option.opts if each[:2] == "--"}
        assert switches <= set(re.findall(r"--[a-z-]+", told[name]))


def test_the_reference_has_every_column_and_every_name(generated: dict[str, str]) -> None:
    from fedray.base.facade import homes
    from fedray.trace.columns import COLUMNS

    for columns in COLUMNS.values():
        assert all(f"| `{each.name}` | " in generated["reference/trace.md"] for each in columns)
    python = "".join(text for path, text in generated.items() if "/python/" in path)
    shown = re.findall(r'heading: "fedray\.([\w.]+)"', python)
    assert len(shown) == len(set(shown))
    names = {each.rpartition(".")[2] for each in shown}
    packages = ("fedray", "fedray.mechanisms", "fedray.scenario")
    public = {name for package in packages for name in homes(package)}
    assert public - {"mechanisms", "scenario"} < names
    assert {"base.errors.Starved", "scenario.Rounds", "Scenario", "InputError"} < set(shown)
    # Names that a module imports have no page, and mkdocs would stop at them.
    errors = {each.rpartition(".")[2] for each in shown if each.startswith("base.errors.")}
    assert all(vars(fedray.base.errors)[name].__module__ == "fedray.base.errors" for name in errors)


MOST_WORDS = 30
"""Words of a sentence, above which a reader has lost its beginning."""
_END = re.compile(r"(?<!\bal)[.!?][)\"*_]*\s+(?=[A-Z0-9`*\"(\[])")
_ITEM = re.compile(r"\n(?=\s*(?:[*-]|\d+\.) )")


def sentences_of(markdown: str) -> Iterator[str]:
    """The sentences of paragraphs, items of lists and cells of tables; no code and no headings."""
    prose = re.sub(r"<!--.*?-->|^#+ .*$", "\n", FENCE.sub("\n\n", markdown), flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n", prose):
        rows = [line.strip().strip("|") for line in block.strip().splitlines()]
        is_table = block.lstrip().startswith("|")
        parts = (
            [cell for row in rows for cell in row.split(" | ")] if is_table else _ITEM.split(block)
        )
        for part in parts:
            yield from filter(None, _END.split(" ".join(part.split())))


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "README.md", ROOT / "scenarios" / "README.md"],
    ids=lambda page: page.stem,
)
def test_no_sentence_of_a_page_is_too_long(page: Path) -> None:
    found = sentences_of(page.read_text(encoding="utf-8"))
    long = [f"{count} words: {each}" for each in found if (count := len(each.split())) > MOST_WORDS]
    assert not long, "\n".join(long)


def test_sentences_of_lists_cells_and_brackets_are_found() -> None:
    page = """# A heading. With a stop.

One (Xu et al. 2023) is one. Two
is two (a bracket.) `three` is `x.y Z`. 4 is 4.

* an item
* another.
  With two

| a | b. C |
|---|---|

```sh
No sentence here.
```
"""
    assert list(sentences_of(page)) == [
        *("One (Xu et al. 2023) is one", "Two is two (a bracket", "`three` is `x.y Z`", "4 is 4."),
        *("* an item", "* another", "With two", "a", "b", "C", "---|---"),
    ]


def test_the_citation_has_this_release_and_its_date() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^([\w-]+): \"?([^\"\n]+)\"?$", text, re.MULTILINE))
    assert fields["version"] == fedray.__version__
    assert date.fromisoformat(fields["date-released"]).year >= 2026
    assert {"cff-version", "message", "type", "title", "license"} <= set(fields)


def anchors_of(text: str) -> set[str]:
    """The anchors that mkdocs gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def with_snippets(text: str) -> str:
    """A page with the files and parts of files that it takes in."""

    def content(found: re.Match[str]) -> str:
        path, _, section = found[1].partition(":")
        taken = (ROOT / path).read_text(encoding="utf-8")
        if not section:
            return taken
        _, start, rest = taken.partition(f"<!-- --8<-- [start:{section}] -->")
        inside, end, _ = rest.partition(f"<!-- --8<-- [end:{section}] -->")
        assert start, f"{found[1]} has no such part"
        assert end, f"{found[1]} has no such part"
        return inside

    taken_in = REFERENCE.with_files_taken_in(text)
    return re.sub(r'^--8<-- "(.*)"$', content, taken_in, flags=re.MULTILINE)


def test_every_link_leads_to_a_page_and_a_heading(generated: dict[str, str]) -> None:
    """As `make docs` does, which needs more packages."""
    written = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    texts = {name: with_snippets(text) for name, text in written.items()} | generated
    found = 0
    for name in [page.name for page in PAGES]:
        for link in re.findall(r"\]\(([^)]+)\)", FENCE.sub("", texts[name])):
            if link.startswith("https://"):
                continue
            path, _, anchor = link.partition("#")
            assert (path or name) in texts or (DOCS / path).is_file(), f"{name}: {link}"
            assert not anchor or anchor in anchors_of(texts[path or name]), f"{name}: {link}"
            found += 1
    assert found > 20


def test_links_to_the_reference_lead_somewhere_in_the_repository_too(
    generated: dict[str, str],
) -> None:
    """To a page that says where the generated one is, and that the build replaces."""
    linked = {
        path
        for page in PAGES
        for path in re.findall(r"\]\((reference/[^)#]+)", page.read_text(encoding="utf-8"))
    }
    standing_in = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("reference/**/*.md")}
    assert linked == standing_in
    for path in standing_in:
        text = (DOCS / path).read_text(encoding="utf-8")
        assert text.startswith(generated[path].partition("\n")[0] + "\n")
        assert f"`make docs` writes it to `site/{path.removesuffix('.md')}.html`" in " ".join(
            text.split()
        )
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (DOCS / path).parent.joinpath(link).is_file()


def test_lines_that_take_in_a_file_are_links_where_pages_are_read_in_the_repository() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    assert not [page.name for page, text in texts.items() if "--8<--" in text]
    taken = [
        found
        for text in texts.values()
        for found in re.findall(r'^--8<-- "(.*)"$', REFERENCE.with_files_taken_in(text), re.M)
    ]
    assert len(taken) == 6
    # Nobody who reads the site has the link.
    notation = with_snippets((DOCS / "notation.md").read_text(encoding="utf-8"))
    assert "smallest difference between two rounds of one device" in notation
    assert "(../" not in notation


def test_the_navigation_names_every_page(generated: dict[str, str]) -> None:
    listed = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted([*(page.name for page in PAGES), *generated])


def test_every_test_that_holds_a_number_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "verified.md").read_text())
    assert len(named) > 20
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_no_word_is_misspelt() -> None:
    """By codespell's list of common mistakes, in all of the project's prose."""
    from codespell_lib import main

    prose = [*DOCS.glob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("*/README.md")]
    assert main(*map(str, prose)) == 0
