"""`python -m fedray`."""

from fedray.cli import main

main()
