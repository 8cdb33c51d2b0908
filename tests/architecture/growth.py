"""Size and language of the source, per package, and the limits that `test_growth.py` holds.

    python tests/architecture/growth.py             prints the table
    python tests/architecture/growth.py --freeze    takes today's figures as limits

Limits are in growth.json, and those of each capability in capabilities.json. They fall with every clean-up; a commit that raises one says why.
Dialect counts constructions that native writers avoid, per 10,000 words of docstrings and comments
(jax_privacy has 3, msprime 4, diffrax 7).
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fedray", "clients", "server", "mechanisms", "scenarios")
LIMITS = Path(__file__).with_name("growth.json")
DIALECT = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # An argument is described by a noun, a docstring opens with a verb or a noun.
        r"(?m)^\s+\w+: (?:of|by|in|for|at|to|what|how|whose|that|as|from|with|per) ",
        r"\A\s*(?:What|Of|How|Who|When|Where) ",
        r"\bwhat (?:is|was|are|were|it|they|a|the)\b",
        r"\b(?:none where|there (?:is|are) none|none is|none of|(?:is|are) no [a-z]+)\b",
        r"\b(?:told|tells?)\b",
        r"\b(?:those that|those of|by what|of what|by whom|for what)\b",
        r"\b(?:alone|anew|goes on|go on|so many|as many|somebody|nobody)\b",
    )
]
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
Figures = dict[str, float]


def packages() -> dict[str, list[Path]]:
    """Files of each top-level folder, and of each package inside `fedray`."""
    found: dict[str, list[Path]] = {}
    for folder in FOLDERS:
        # The links inside `fedray` lead to the other folders, which are counted by their own names.
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT).parts
            if not any(each.is_symlink() for each in file.parents):
                depth = 2 if folder == "fedray" and len(parts) > 2 else 1
                found.setdefault("/".join(parts[:depth]), []).append(file)
    return found


def figures_of(files: list[Path]) -> Figures:
    """Lines, tokens and the density, comments and dialect of files together."""
    counts: Counter[str] = Counter()
    for file in files:
        text = file.read_text(encoding="utf-8")
        strings = list(_docstrings(ast.parse(text)))
        prose = [each.value for each in strings]
        inside = {
            line for each in strings for line in range(each.lineno, (each.end_lineno or 0) + 1)
        }
        code_lines = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                prose.append(token.string.lstrip("# "))
                counts["comments"] += token.line.lstrip().startswith("#")
            elif token.type not in NO_CODE and token.start[0] not in inside:
                counts["tokens"] += 1
                code_lines.add(token.start[0])
        counts["lines"] += len(text.splitlines())
        counts["code lines"] += len(code_lines)
        counts["words"] += sum(len(piece.split()) for piece in prose)
        counts["dialect"] += sum(len(p.findall(piece)) for p in DIALECT for piece in prose)
    return {
        "lines": counts["lines"],
        "tokens": counts["tokens"],
        "tokens per line": round(counts["tokens"] / max(1, counts["code lines"]), 2),
        "comments %": round(100 * counts["comments"] / max(1, counts["lines"]), 1),
        "dialect": round(1e4 * counts["dialect"] / max(1, counts["words"])),
    }


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as string):
                yield string


def surface() -> Figures:
    """Public names, commands and distinct options, and rooms: packages and modules of `fedray/`.

    A command with subcommands counts as one, with the options of all of them. Options that are
    declared once for all commands count once.
    """
    import typer

    import fedray
    from fedray.cli import app
    from fedray.commands.frame.declaring import COMMON

    group = typer.main.get_command(app)
    commands = getattr(group, "commands", {})
    options = {
        ("" if parameter.name in COMMON else name, parameter.name)
        for name, command in commands.items()
        for each in (command, *_subcommands_of(command))
        for parameter in each.params
        if parameter.param_type_name == "option"
    }
    rooms = [
        each
        for each in (ROOT / "fedray").iterdir()
        if (each.is_dir() and each.name != "__pycache__") or each.suffix == ".py"
    ]
    return {
        "public names": len([name for name in dir(fedray) if not name.startswith("_")]),
        "commands": len(commands),
        "options": len(options),
        "rooms": len(rooms),
    }


def _subcommands_of(command: Any) -> list[Any]:
    if not hasattr(command, "list_commands"):
        return []
    import click

    context = click.Context(command)
    return [command.get_command(context, name) for name in command.list_commands(context)]


def today() -> dict[str, Figures]:
    """Figures of every package, of all of them together, and of the surface."""
    found = packages()
    figures = {name: figures_of(files) for name, files in sorted(found.items())}
    figures["all"] = figures_of([file for files in found.values() for file in files])
    return {**figures, "surface": surface()}


def main() -> None:
    """Prints the table, or writes the limits."""
    found = today()
    if "--freeze" in sys.argv[1:]:
        LIMITS.write_text(json.dumps(found, indent=1) + "\n")
        import inventory

        inventory.freeze()
    for name, figures in found.items():
        print(f"{name:20}", *(f"{what} {value:g}".ljust(22) for what, value in figures.items()))


if __name__ == "__main__":
    main()
