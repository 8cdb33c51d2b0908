"""The commands of `fedray`, one function each; every behaviour is in the package. fedray/cli.py
registers them."""
