"""Places of files: paths of this machine, and `file://` URIs of them."""

import re
from pathlib import Path
from urllib.parse import unquote

from fedray.base.errors import InputError

# A Path has one slash where the URI that it was made from had two.
_URI = re.compile(r"([A-Za-z][\w+.-]+):/+(.*)", re.DOTALL)


def local_path(place: str | Path) -> Path:
    """Returns the path of a `place` on this machine: a path, or a `file://` URI. Raises InputError
    for any other URI, of which a path would make a folder with a colon."""
    if (found := _URI.fullmatch(str(place))) is None:
        return Path(place)
    scheme, rest = found[1].lower(), found[2]
    if scheme != "file":
        raise InputError(
            f"'{scheme}://{rest}' is not on this machine, and only local files can be used here; "
            "name a path or a file:// URI"
        )
    return Path(f"/{unquote(rest)}")
