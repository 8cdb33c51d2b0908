"""Tools without knowledge of the domain: random draws, errors, tables, files, parsing, rounding."""
