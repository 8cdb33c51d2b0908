"""The core works without the studies: they are deleted from a copy of the project, whose tests then run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("fedray", "clients", "server", "mechanisms", "scenarios", "tests", "docs", "deploy")
FILES = ("pyproject.toml", "README.md", "LICENSE", "Makefile", "ARCHITECTURE.md", "mkdocs.yml")
STUDIES = (
    *("fedray/studies", "fedray/watch", "fedray/commands/studies", "scenarios/[a-z]*.py"),
    *("scenarios/sweeps", "tests/studies", "tests/watch", "tests/scenarios/test_*.py"),
)
"""What may be deleted. A scenario is a file of the core, a reproduction a module beside it."""
WHOLE = (
    *("tests/architecture", "tests/benchmarks", "tests/callbacks", "tests/deploy", "tests/frozen"),
    *("tests/fuzz", "tests/reproduction", "tests/fedray/test_facade.py"),
    *("tests/report/test_browser.py", "tests/report/test_documents.py"),
)
"""Tests of the whole product: its files, figures, public names, pages and documents."""
ONLY_THE_COPY = """
import sys

# The finder of the editable installation would find the studies in the checkout.
sys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in each.__module__]
"""
