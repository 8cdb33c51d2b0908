"""`python -m fedray`."""

import os
import sys
from pathlib import Path

# Python puts the working directory first on the path, and a file called numpy.py there would run.
if sys.path[0] == os.getcwd() != str(Path(__file__).resolve().parents[1]):
    del sys.path[0]

from fedray.cli import main

main()
