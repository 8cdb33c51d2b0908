"""The participations of a FedScale training, from the log that its aggregator writes.

    python fedscale_log.py aggregator.log log.csv

Copy this file: it needs nothing but the standard library. FedScale logs whom it lets run in a
round, and how many succeeded, but not who. Where some failed, all of them are written: an audit of
more participations than there were is on the safe side. Times are seconds of FedScale's own clock.
"""

import csv
import re
import sys

ROUND = re.compile(r"Wall clock: (\d+(?:\.\d+)?) s, round: (\d+), ")
SELECTED = re.compile(r"Selected participants to run: \[([\d, ]*)\]")


def participations(lines):
    """Rows (device, round, time) of the rounds that the log shows completed."""
    running, current = [], 0
    for line in lines:
        if found := ROUND.search(line):
            # It says that the round before is over.
            yield from ((device, current, found[1]) for device in running)
            running, current = [], int(found[2])
        elif found := SELECTED.search(line):
            running = [int(each) for each in found[1].split(",") if each.strip()]


if __name__ == "__main__":
    with open(sys.argv[1]) as log, open(sys.argv[2], "x", newline="") as file:
        csv.writer(file).writerow(["device", "round", "time"])
        csv.writer(file).writerows(participations(log))
