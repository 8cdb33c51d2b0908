"""The reference pages of the documentation, made from the code: nothing in them is written twice.

Every function gives the Markdown of one page. `docs/hooks/pages.py` hands the pages to mkdocs.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from json_documents import DOCUMENTS, described, rows_of
from pydantic import BaseModel
from typer.main import get_command

from fedray.audit.claims import Claim
from fedray.base import errors
from fedray.base.facade import homes
from fedray.cli import app
from fedray.scenario import Scenario
from fedray.scenario.keys import KeyTable, tables_of
from fedray.studies.sweep.sweep import Sweep
from fedray.trace.columns import COLUMNS

FILES: Mapping[str, tuple[str, type[BaseModel]]] = {
    "reference/scenario.md": ("Scenario files", Scenario),
    "reference/claim.md": ("Claim files", Claim),
    "reference/sweep.md": ("Sweep files", Sweep),
}
"""(title, class of the top-level table) of every page about a TOML file."""

AREAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "running": (
        "Running and training",
        (
            "fedray.runs",
            "fedray.runtime",
            "fedray.clients.tasks.check",
            "fedray.clients.tasks.load",
            "fedray.wire.messages",
        ),
    ),
    "traces": ("Traces and trained runs", ("fedray.trace", "fedray.imports")),
    "audits": ("Audits and reports", ("fedray.audit", "fedray.report", "fedray.base.result")),
    "mechanisms": ("Mechanisms", ("fedray.mechanisms", "fedray.noise")),
    "studies": ("Studies", ("fedray.studies",)),
    "scenarios": ("Tables of scenarios", ("fedray.scenario", "fedray.encoding")),
    "errors": ("Errors", ("fedray.base.errors",)),
}
"""(title, modules) of every page of the Python interface. A name is on the page of its module."""

WITHOUT_VALUE = ("required", "left out", "its defaults")
"""What `Key.default` says of a key that has no value by default, or a table of them."""


def with_files_taken_in(markdown: str) -> str:
    """Returns a page with snippets in place of lines that are a link to a file beside docs/, such
    as `[Name](../FILE "PART")`: in the repository readers follow it, and the site has the content.
    """
    link = r'^!?\[[^\]]*\]\(\.\./([\w./-]+)(?: "(\w+)")?\)$'

    def snippet(found: re.Match[str]) -> str:
        return f'--8<-- "{":".join(filter(None, found.groups()))}"'

    return re.sub(link, snippet, markdown, flags=re.MULTILINE)


def pages() -> dict[str, str]:
    """The Markdown of every generated page, by its path below `docs/`."""
    files = {path: _file_page(title, root) for path, (title, root) in FILES.items()}
    python = {
        f"reference/python/{area}.md": _python_page(title, _names_of(modules))
        for area, (title, modules) in AREAS.items()
    }
    others = {
        "reference/commands.md": commands(),
        "reference/json.md": json_documents(),
        "reference/trace.md": trace(),
    }
    return files | python | others


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, without the columns in which no row has anything."""
    all_rows = [tuple(header), *map(tuple, rows)]
    columns = [column for column in zip(*all_rows, strict=True) if any(column[1:])]
    names, *cells = zip(*columns, strict=True)
    lines = [names, ["---"] * len(names), *([_cell(each) for each in row] for row in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """A text as a cell: a bar would end it, and `<` outside code would begin a tag."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(
        part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts)
    )


def _default(text: str) -> str:
    """A default as code, or the words that stand for none."""
    return text if text in WITHOUT_VALUE else f"`{text}`"


def _page(title: str, parts: Iterable[str]) -> str:
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def _file_page(title: str, root: type[BaseModel]) -> str:
    return _page(title, [part for each in tables_of(root) for part in _of_table(each)])


def _of_table(each: KeyTable) -> Iterator[str]:
    path = each.path or "Top level"
    yield f"## {path}, {each.kind}" if each.kind else f"## {path}"
    yield inspect.getdoc(each.table) or ""
    rows = (
        (f"`{key.name}`", key.type, key.unit, _default(key.default), key.meaning)
        for key in each.keys
    )
    yield _table(("key", "type", "unit", "default", "meaning"), rows)


def commands() -> str:
    """The page of the commands: usage, what each does, arguments, options."""
    group: Any = get_command(app)
    return _page("Commands", _of_group(group, group.context_class(group, info_name="fedray")))


def _of_group(group: Any, above: Any) -> Iterator[str]:
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        context = command.context_class(command, info_name=name, parent=above)
        yield from _of_command(command, context)
        # A command with subcommands is followed by them.
        if hasattr(command, "list_commands"):
            yield from _of_group(command, context)


def _of_command(command: Any, context: Any) -> Iterator[str]:
    yield f"## {context.command_path}"
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    yield f"```text\n{usage}\n```"
    yield (command.help or "").strip()
    for kind in ("argument", "option"):
        of_kind = [each for each in command.params if each.param_type_name == kind]
        records = filter(None, (each.get_help_record(context) for each in of_kind))
        rows = [(f"`{switches}`", meaning) for switches, meaning in records]
        if rows:
            yield _table((kind, "meaning"), rows)


def trace() -> str:
    """The page of the columns of a trace."""
    return _page("Trace columns", [part for file in COLUMNS for part in _of_columns(file)])


def _of_columns(file: str) -> Iterator[str]:
    yield f"## {file}"
    rows = ((f"`{each.name}`", each.type, each.unit, each.meaning) for each in COLUMNS[file])
    yield _table(("column", "type", "unit", "meaning"), rows)


def json_documents() -> str:
    """The page of what commands print with `--json`."""
    about = (
        "What commands print with `--json`, and some JSON files that they write. In a path, `[]` "
        "stands for each of a list, and a word in capitals for a name. Privacy is not rounded "
        "here."
    )
    return _page(
        "JSON documents", [about, *(part for name in DOCUMENTS for part in _of_document(name))]
    )


def _of_document(name: str) -> Iterator[str]:
    yield f"## {name}"
    yield described(name)
    rows = (
        (f"`{each.path}`", each.key.type, f"{each.key.meaning}{each.reference}")
        for each in rows_of(name)
    )
    yield _table(("key", "type", "meaning"), rows)


def _names_of(modules: tuple[str, ...]) -> dict[str, str]:
    """Public names that are defined in modules, with the full path of each."""
    return {name: path for name, path in public_names().items() if _is_below(path, modules)}


def _is_below(path: str, modules: tuple[str, ...]) -> bool:
    return any(path.startswith(f"{module}.") for module in modules)


def public_names() -> dict[str, str]:
    """Every public name, such as `fedray.scenario.Rounds`, with its full path.

    A name that is public in two places, such as `Scenario`, has its shorter form.
    """
    kinds = [
        name
        for name, each in vars(errors).items()
        if inspect.isclass(each) and each.__module__ == errors.__name__
    ]
    found = {f"{errors.__name__}.{name}": f"{errors.__name__}.{name}" for name in kinds}
    for package in ("fedray.scenario", "fedray.mechanisms", "fedray"):
        for name, home in homes(package).items():
            if home != f"{package}.{name}":  # a package has no page of its own
                found[f"{home}.{name}"] = f"{package}.{name}"
    return {name: path for path, name in found.items()}


def _python_page(title: str, names: Mapping[str, str]) -> str:
    return _page(title, [_directive(name, path) for name, path in sorted(names.items())])


def _directive(name: str, path: str) -> str:
    """What mkdocstrings replaces by signature and docstring."""
    heading = f'      heading: "{name}"\n      toc_label: "{name.rpartition(".")[2]}"'
    return f"::: {path}\n    options:\n{heading}"
