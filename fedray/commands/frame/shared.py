"""Parameters that several commands have: their descriptions, and their names as options."""

SHARED = """\
Args:
    as_json: print one JSON object on stdout, and nothing else
    columns (A,B): columns of the file of tables by their headings, in this order
    delta (D): delta of epsilon; default: that of the run, else 1e-10
    delimiter (C): character between columns of CSV, or tab; default: a comma
    ensure (TOML): claim that the rules must ensure before anything starts, and every release
    figures (DIR): folder for every figure, and its data as CSV
    is_fixed_order: rounds of a device are exactly min-sep apart, as in passes in one order
    log: CSV, JSON Lines or Parquet file, or a directory of them
    max_participations (K): max participations k: most rounds of a device
    min_sep (B): min-sep b: least difference of two rounds of a device
    overrides (KEY=VALUE): key of the scenario to set, such as seed=7; repeatable
    page (FILE): HTML page to write
    place (KEY=VALUE): where it runs, such as shards=4 (see `fedray schema placement`); repeatable
    quiet: show no progress, only errors
    resume (DIR): directory of an interrupted run to continue
    rounds (N): rounds n
    scenario: scenario file, or a name that `fedray init --list` shows
    style (STYLE): paper (3.25 inches wide), wide (6.75) or slides, and formats: pdf, svg, png
    table_file (FILE): file for the printed table, and numbered ones for more: .csv, .tex or .md
    tensorboard (DIR): folder for TensorBoard's event files
    title (TEXT): heading of the page
    trace: trace, a directory of `fedray run` or `fedray import`
    trust_code: run custom code that came with a trace or an interrupted run
Form of the log:
    time_format (FORMAT|UNIT): such as '%d.%m.%Y' (repeatable), or unit of numbers: s, ms, us, ns
"""
"""Descriptions of parameters that several commands have, which a docstring may replace."""
FLAGS = {
    "as_json": "--json",
    "is_fixed_order": "--fixed-order",
    "is_list": "--list",
    "overrides": "--set",
    "table_file": "--table",
}
"""Options whose name is not that of their parameter."""
