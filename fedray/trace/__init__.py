"""The product of a run: a directory of Parquet files and one JSON file. Needs only pyarrow and
numpy."""
