"""fedray's own source: where it lies, and a digest that tells two copies apart."""

import hashlib
import os
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Directory from which `import fedray` imports this package."""


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Returns a SHA-256 digest of all modules: equal for a checkout and its installation."""
    digest = hashlib.sha256()
    package = ROOT / "fedray"
    # In a checkout, some packages are links.
    walked = os.walk(package, followlinks=True)
    files = sorted(Path(folder, name) for folder, _, names in walked for name in names)
    for file in files:
        if file.suffix == ".py":
            digest.update(f"{file.relative_to(package).as_posix()}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
