"""Traces, the results of runs: a directory with Parquet files and a JSON file. Needs only pyarrow
and numpy."""
