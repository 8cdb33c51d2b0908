"""How the code reads, in figures, beside projects whose code reads well.

    python tests/architecture/measures.py [FOLDER]...

The figures are a guide, and nothing fails by them. Those of the other projects were measured by
the same definitions, over all of their source.
"""

import ast
import io
import statistics
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fedray", "clients", "server", "mechanisms", "scenarios")
WIDTH = 100
ANCHORS = "jax_privacy, dp_accounting, diffrax, tskit, trio, zarr"
OF_ANCHORS = {
    "tokens per code line": "5.2 to 6.8",
    "lines over 100 characters": "0 to 0.6 %",
    "own-line comments": "4.6 to 14.6 %",
    "words in a public docstring, median": "23 to 63",
    "parameters named in it": "57 to 96 %",
    "fields with a line of their own": "",
}
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass
class Counts:
    """What is counted in source files.

    lines: that are not blank.
    long_lines: of them, those over WIDTH characters.
    comment_lines: of them, those that hold a comment alone.
    code_lines: of them, those with code; docstrings are none.
    tokens: in the code lines.
    docstring_words: of every public docstring.
    parameters, named_parameters: of public functions with a docstring, and those that it names.
    fields, told_fields: of public dataclasses, and those that a docstring names.
    """

    lines: int = 0
    long_lines: int = 0
    comment_lines: int = 0
    code_lines: int = 0
    tokens: int = 0
    docstring_words: tuple[int, ...] = ()
    parameters: int = 0
    named_parameters: int = 0
    fields: int = 0
    told_fields: int = 0

    def add(self, source: str) -> None:
        """Counts one file's source."""
        tree = ast.parse(source)
        in_docstrings = _lines_of_docstrings(tree)
        code_lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            is_alone = not token.line[: token.start[1]].strip()
            if token.type == tokenize.COMMENT and is_alone:
                self.comment_lines += 1
            if token.type in _NO_CODE or token.start[0] in in_docstrings:
                continue
            self.tokens += 1
            code_lines.add(token.start[0])
        self.code_lines += len(code_lines)
        lines = [line for line in source.splitlines() if line.strip()]
        self.lines += len(lines)
        self.long_lines += sum(len(line) > WIDTH for line in lines)
        for node in ast.walk(tree):
            self._add_definition(node)

    def _add_definition(self, node: ast.AST) -> None:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            return
        docstring = ast.get_docstring(node)
        if docstring is None:
            return
        self.docstring_words = (*self.docstring_words, len(docstring.split()))
        if isinstance(node, ast.FunctionDef):
            names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
            names = [name for name in names if name not in ("self", "cls")]
            self.parameters += len(names)
            self.named_parameters += sum(name in docstring for name in names)
        elif _is_dataclass(node):
            self._add_fields(node, docstring)

    def _add_fields(self, node: ast.ClassDef, docstring: str) -> None:
        for place, statement in enumerate(node.body):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(
                statement.target, ast.Name
            ):
                continue
            follows = node.body[place + 1] if place + 1 < len(node.body) else None
            is_told = _is_string(follows) or statement.target.id in docstring
            self.fields += 1
            self.told_fields += is_told

    def rows(self) -> dict[str, str]:
        """The figures, by the names of OF_ANCHORS."""

        def share(part: int, whole: int) -> str:
            return f"{100 * part / max(whole, 1):.1f} %"

        median = statistics.median(self.docstring_words) if self.docstring_words else 0
        values = (
            f"{self.tokens / max(self.code_lines, 1):.1f}",
            share(self.long_lines, self.lines),
            share(self.comment_lines, self.lines),
            f"{median:.0f}",
            share(self.named_parameters, self.parameters),
            share(self.told_fields, self.fields),
        )
        return dict(zip(OF_ANCHORS, values, strict=True))


def _lines_of_docstrings(tree: ast.Module) -> set[int]:
    """Numbers of all lines of strings that stand alone: docstrings, and those under fields."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and _is_string(node)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _is_string(node: ast.AST | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(each) for each in node.decorator_list)


def measure(files: list[Path]) -> Counts:
    """The counts of Python files together."""
    counts = Counts()
    for file in files:
        counts.add(file.read_text())
    return counts


def main() -> None:
    """Prints the figures of each folder, of all of them, and of the other projects."""
    folders = sys.argv[1:] or list(FOLDERS)
    files = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in folders}
    columns = {folder: measure(found).rows() for folder, found in files.items()}
    columns["all"] = measure([file for found in files.values() for file in found]).rows()
    columns["others"] = OF_ANCHORS
    width = max(len(name) for name in OF_ANCHORS)
    print(" " * width, *(f"{name:>14}" for name in columns))
    for name in OF_ANCHORS:
        print(f"{name:{width}}", *(f"{column[name]:>14}" for column in columns.values()))
    print(f"others: {ANCHORS}")


if __name__ == "__main__":
    main()
