"""Capabilities of fedray: the files and lines of each, and the limits that `test_inventory.py` holds.

    python tests/architecture/inventory.py      prints lines now and frozen, the largest first

capabilities.json gives every source file to exactly one capability, the one without which the file
would not exist. `growth.py --freeze` takes today's lines as limits.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from growth import ROOT, packages

FILE = Path(__file__).with_name("capabilities.json")
Capabilities = dict[str, dict[str, Any]]


def capabilities() -> Capabilities:
    """The `files` and frozen `lines` of each capability by its name."""
    return json.loads(FILE.read_text())


def lines_today() -> dict[str, int]:
    """Lines of every source file by its path from the repository's root."""
    files = [file for found in packages().values() for file in found]
    return {
        file.relative_to(ROOT).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for file in files
    }


def lines_of(each: dict[str, Any], lines: dict[str, int]) -> int:
    """Lines of a capability, from the lines of every file."""
    return sum(lines.get(file, 0) for file in each["files"])


def problems(known: Capabilities, lines: dict[str, int]) -> list[str]:
    """One line for each file without exactly one capability, and for a sum above the frozen one."""
    places = Counter(file for each in known.values() for file in each["files"])
    result = [f"{file}: no capability has it" for file in lines if file not in places]
    result += [f"{file}: no such file" for file in places if file not in lines]
    result += [f"{file}: in {count} capabilities" for file, count in places.items() if count > 1]
    limit = sum(each["lines"] for each in known.values())
    if sum(lines.values()) > limit:
        grown = {name: lines_of(each, lines) - each["lines"] for name, each in known.items()}
        more = ", ".join(f"{name} {grown[name]:+}" for name in known if grown[name])
        result.append(f"{sum(lines.values())} lines, limit {limit}: {more}")
    return result


def freeze() -> None:
    """Writes today's lines as limits."""
    lines = lines_today()
    frozen = {
        name: {"lines": lines_of(each, lines), "files": sorted(each["files"])}
        for name, each in sorted(capabilities().items())
    }
    FILE.write_text(json.dumps(frozen, indent=1) + "\n")


def main() -> None:
    """Prints each capability with its lines, now and frozen."""
    lines, known = lines_today(), capabilities()
    for name, each in sorted(known.items(), key=lambda item: -lines_of(item[1], lines)):
        print(f"{name:50} {lines_of(each, lines):6} {each['lines']:6}")
    print(f"{f'{len(known)} capabilities':50} {sum(lines.values()):6}", *problems(known, lines))


if __name__ == "__main__":
    main()
