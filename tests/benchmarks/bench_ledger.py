"""CPU seconds of a ledger of many charges: opened, and every window summed.

    python tests/benchmarks/bench_ledger.py [--charges 10000] [--devices 20]

Charges are of logs of their own, one a day over four years, in quarters; each has a file of random devices of a thousand.
"""

import argparse
import datetime
import hashlib
import tempfile
import time

import numpy as np
import pyarrow as pa

from fedray.audit.ledger import Ledger
from fedray.audit.ledger_files import Units, write_units
from fedray.audit.ledger_lines import Charged, Spent
from fedray.base.periods import PERIODS

FIRST, DAYS, DEVICES = datetime.date(2020, 1, 1), 1461, 1000


def charge(ledger: Ledger, number: int, devices: int) -> Charged:
    """The charge of a log, whose file is written."""
    draw = np.random.default_rng(number)
    names = pa.array([f"d{each}" for each in draw.choice(DEVICES, devices, replace=False)])
    units = Units(names, names, draw.random(devices) * 1e-4)
    file = write_units(ledger.path, "device", "gaussian", units)
    day, digest = FIRST + datetime.timedelta(number % DAYS), hashlib.sha256(b"%d" % number)
    spent = Spent(release="gaussian", file=file, enforced=None)
    return Charged(
        name=digest.hexdigest()[:12],
        run=digest.hexdigest(),
        trace=digest.hexdigest(),
        identity=digest.hexdigest(),
        first=None,
        last=None,
        start=day,
        noise=(),
        columns=1,
        are_distinct=False,
        vocabularies=(),
        windows={PERIODS["quarter"](day): (spent,)},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--charges", type=int, default=10_000)
    parser.add_argument("--devices", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = Ledger.create(f"{folder}/ledger", 1e6, 1e-6, "quarter")
        made._with([charge(made, number, given.devices) for number in range(given.charges)])
        begin = time.process_time()
        opened = Ledger.open(made.path)
        middle = time.process_time()
        windows = opened.windows
        end = time.process_time()
    print(
        f"{given.charges:,} charges in {len(windows)} windows: opened {middle - begin:.2f} CPU s, "
        f"summed {end - middle:.2f} CPU s"
    )


if __name__ == "__main__":
    main()
