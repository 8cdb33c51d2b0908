"""The commands of `fedray`, one function each; every behaviour is in the package. fedray/cli.py
finds them by their files."""
