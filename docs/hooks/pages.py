"""Hooks of mkdocs: they add the generated reference to the pages of a build, and put the files that
lines link to in place of these lines.

The pages of docs/reference/ stand in for it where the documentation is read in the repository.
"""

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

# mkdocs loads this file by its path, so its neighbour is not importable by itself.
sys.path.insert(0, str(Path(__file__).parent))

from reference import pages, with_files_taken_in


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs when it has found the written pages."""
    for path, content in pages().items():
        if (written := files.get_file_from_path(path)) is not None:
            files.remove(written)
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return with_files_taken_in(markdown)
