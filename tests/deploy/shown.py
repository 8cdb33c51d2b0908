"""Commands that a page shows."""

import re
from pathlib import Path


def commands_of(page: Path) -> list[str]:
    """The lines of a page's blocks of shell commands, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    return [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
