"""Size and language of the source, per package, and the limits that `test_growth.py` holds.

    python tests/architecture/growth.py             prints packages, and the lines of each capability
    python tests/architecture/growth.py --freeze    takes today's figures as limits

Every package has limits, in growth.json: a commit that raises one says what for. The whole and the number of options have none.
capabilities.json gives every source file to exactly one capability, the one without which the file would not exist; a capability
may belong to a row of the mission, which is never removed for lines (`test_mission.py`).
Dialect counts constructions that native writers avoid, per 10,000 words of docstrings and comments
(jax_privacy has 3, msprime 4, diffrax 7).
"""

import ast
import io
import json
import math
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fedray", "clients", "server", "mechanisms", "scenarios")
LIMITS = Path(__file__).with_name("growth.json")
CAPABILITIES = Path(__file__).with_name("capabilities.json")
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
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
Figures = dict[str, float]
Capabilities = dict[str, dict[str, Any]]


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
        counts["lines"] += len(text.splitlines())
        prose: list[str] = []
        code_lines: set[int] = set()
        statement: list[tokenize.TokenInfo] = []
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                prose.append(token.string.lstrip("# "))
                counts["comments"] += token.line.lstrip().startswith("#")
            elif token.type == tokenize.NEWLINE:
                # A statement that is a string is a docstring, and no code.
                if [each.type for each in statement] == [tokenize.STRING]:
                    prose.append(ast.literal_eval(statement[0].string))
                else:
                    counts["tokens"] += len(statement)
                    code_lines |= {each.start[0] for each in statement}
                statement = []
            elif token.type not in NO_CODE:
                statement.append(token)
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


def today() -> dict[str, Figures]:
    """Figures of every package."""
    return {name: figures_of(files) for name, files in sorted(packages().items())}


def growths(found: dict[str, Figures], limits: dict[str, Figures]) -> list[str]:
    """One line for each figure of a package beyond its limit, the largest growth first.

    Only the share of comments may not fall.
    """
    beyond: list[tuple[float, str]] = []
    for name, figures in found.items():
        for what, value in figures.items():
            limit = limits.get(name, {}).get(what, 0)
            low, high = (value, limit) if what == "comments %" else (limit, value)
            if low < high:
                text = f"{name}: {what} {value:g}, limit {limit:g}"
                beyond.append((high / low if low else math.inf, text))
    return [text for _, text in sorted(beyond, key=lambda each: -each[0])]


def capabilities() -> Capabilities:
    """The files of each capability by its name, with its row of the mission, if it has one."""
    return json.loads(CAPABILITIES.read_text())


def misplaced(known: Capabilities, files: Iterable[str]) -> list[str]:
    """One line for each file that is not in exactly one capability, or that does not exist."""
    places = Counter(file for each in known.values() for file in each["files"])
    there = set(files)
    return [
        *(f"{file}: no capability has it" for file in sorted(there - places.keys())),
        *(f"{file}: no such file" for file in sorted(places.keys() - there)),
        *(f"{file}: in {count} capabilities" for file, count in places.items() if count > 1),
    ]


def lines_today() -> dict[str, int]:
    """Lines of every source file by its path from the repository's root."""
    return {
        file.relative_to(ROOT).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for files in packages().values()
        for file in files
    }


def main() -> None:
    """Prints packages and capabilities, or writes the limits."""
    found = today()
    if "--freeze" in sys.argv[1:]:
        LIMITS.write_text(json.dumps(found, indent=1) + "\n")
    for name, figures in found.items():
        print(f"{name:20}", *(f"{what} {value:g}".ljust(22) for what, value in figures.items()))
    lines = lines_today()
    sizes = {
        name: sum(lines.get(file, 0) for file in each["files"])
        for name, each in capabilities().items()
    }
    for name, size in sorted(sizes.items(), key=lambda each: -each[1]):
        print(f"{name:54} {size:6}  {capabilities()[name].get('row', '')}".rstrip())
    print(f"{f'{len(sizes)} capabilities':54} {sum(lines.values()):6}")


if __name__ == "__main__":
    main()
