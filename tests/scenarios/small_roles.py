"""A small data file of roles."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def written_roles(folder: Path) -> Path:
    """Writes forty roles that say sentences of few words, three examples each."""
    draws = np.random.default_rng(5)
    words = np.array(["tea", "kettle", "stove", "rose", "and", "the", "cold"])
    rows = []
    for role in range(40):
        text = " ".join(draws.choice(words, 60))
        rows += [{"client": f"play_{role}", "text": text[i : i + 80]} for i in (0, 80, 160)]
    file = folder / "roles.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file
