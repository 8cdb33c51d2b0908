"""Commands of studies. `fedray/cli.py` finds those that are here."""
