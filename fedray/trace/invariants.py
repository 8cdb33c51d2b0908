"""Invariants of every trace. The reader checks the files' shape on opening and these on reading.

1. Committed rounds are numbered 0, 1, 2, ... in order of time; an abandoned attempt has the number
   of the next commit.
2. opened <= started <= closed in every attempt, and attempts close in order.
3. accepted <= reported <= selected. An abandoned attempt accepts 0 devices, a committed round at
   least 1; only a Poisson sample may be empty.
4. A part's rows belong to its own devices, are sorted by (device_id, checkin_time), and name rounds
   that exist; rows of excluded devices may also name the round that was being formed when the run
   ended. An excluded device has no later rows.
5. A device is accepted at most once in a round, and its accepted rounds increase.
6. The rounds table states the number of accepted rows of each round.
7. Losses of devices' histories are sorted by (device_id, time).
8. In buffered rounds the version of a participation is at most its round, and at most max_staleness
   older.
9. All rows of a device name the same owner.
"""

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Int64Array, UInt32Array, UInt64Array
from fedray.base.errors import TraceCorrupt
from fedray.wire.messages import Outcome


def check_rounds(columns: dict[str, NDArray], source: str, *, may_be_empty: bool = False) -> None:
    """Checks invariants 1 to 3.

    Args:
        columns: columns of rounds.parquet, by name.
        may_be_empty: whether committed rounds are Poisson samples.
        source: the file, for messages.

    Raises:
        TraceCorrupt: a round breaks an invariant.
    """
    is_committed = columns["state"] == 0
    # An attempt's number is the number of commits before it.
    expected = np.empty(0)
    if is_committed.size:
        expected = np.concatenate([[0], np.cumsum(is_committed)[:-1]])
    counts_commits = (columns["round"] == expected).all()
    _demand(bool(counts_commits), source, "round numbers do not count committed rounds from 0")
    opened = columns["opened"]
    started = columns["started"]
    closed = columns["closed"]
    is_in_order = (opened <= started).all() and (started <= closed).all()
    closes_in_order = (np.diff(closed) >= 0).all()
    _demand(
        bool(is_in_order and closes_in_order), source, "opened, started, closed are out of order"
    )
    accepted = columns["accepted"]
    reported = columns["reported"]
    is_nested = (accepted <= reported).all() and (reported <= columns["selected"]).all()
    _demand(bool(is_nested), source, "accepted <= reported <= selected does not hold")
    accepts_nobody = (accepted[~is_committed] == 0).all()
    _demand(bool(accepts_nobody), source, "an abandoned attempt accepts devices")
    accepts_somebody = may_be_empty or (accepted[is_committed] > 0).all()
    _demand(bool(accepts_somebody), source, "a committed round accepts no device")


def check_rows(
    columns: dict[str, NDArray],
    first_device: int,
    end_device: int,
    last_round: int,
    committed_rounds: int,
    source: str,
) -> None:
    """Checks invariant 4 for all rows of a part.

    Args:
        columns: columns of the part, by name.
        first_device: least permitted id.
        end_device: one above the largest permitted id.
        last_round: largest round number of an attempt.
        committed_rounds: number of the round that was being formed when the run ended.
        source: the file, for messages.

    Raises:
        TraceCorrupt: a row breaks it.
    """
    device_ids = columns["device_id"]
    times = columns["checkin_time"]
    if not device_ids.size:
        return
    is_next_device = device_ids[1:] > device_ids[:-1]
    is_same_device = device_ids[1:] == device_ids[:-1]
    is_later = times[1:] >= times[:-1]
    is_sorted = is_next_device | (is_same_device & is_later)
    _demand(bool(is_sorted.all()), source, "rows are not sorted by device_id and checkin_time")
    # Sorted ids are within the part if the first and the last are.
    inside = first_device <= int(device_ids[0]) and int(device_ids[-1]) < end_device
    _demand(inside, source, f"device ids lie outside [{first_device}, {end_device})")
    # An excluded device has the number of a round that may never have been attempted.
    is_excluded = columns["outcome"] == Outcome.EXCLUDED
    last_of_row = np.where(is_excluded, max(last_round, committed_rounds), last_round)
    _demand(
        bool((columns["round"] <= last_of_row).all()),
        source,
        f"a row names a round after {last_round}, the last attempt's",
    )
    # Rows of a device are adjacent, so checking the next row is enough.
    comes_back = is_excluded[:-1] & is_same_device
    _demand(not comes_back.any(), source, "a device that was excluded has a later row")


def check_accepted(
    device_ids: UInt64Array,
    rounds: UInt32Array,
    first_device: int,
    end_device: int,
    count: int,
    source: str,
) -> None:
    """Checks invariants 4 and 5 for the accepted rows of a part.

    Args:
        device_ids: device ids of the rows, [A], in order.
        rounds: rounds of the rows, [A].
        first_device: smallest id that the part may have.
        end_device: one above the largest id that the part may have.
        count: number of committed rounds.
        source: the file, for messages.

    Raises:
        TraceCorrupt: a row breaks an invariant.
    """
    if not device_ids.size:
        return
    _demand(
        bool((device_ids[1:] >= device_ids[:-1]).all()), source, "rows are not sorted by device_id"
    )
    inside = first_device <= int(device_ids[0]) and int(device_ids[-1]) < end_device
    _demand(inside, source, f"device ids lie outside [{first_device}, {end_device})")
    _demand(
        # An abandoned attempt accepts no device, so no row can be after the last commit.
        int(rounds.max()) < count,
        source,
        f"a row names round {int(rounds.max())}, but {count} were committed",
    )
    is_same = device_ids[1:] == device_ids[:-1]
    increases = rounds[1:][is_same] > rounds[:-1][is_same]
    _demand(bool(increases.all()), source, "a device's accepted rounds do not increase")


def check_totals(accepted_rows: Int64Array, columns: dict[str, NDArray], source: str) -> None:
    """Checks invariant 6.

    Args:
        accepted_rows: number of accepted rows of each round, [committed rounds].
        columns: columns of rounds.parquet, by name.
        source: the file, for messages.

    Raises:
        TraceCorrupt: a round has another number of rows.
    """
    # Accepted rows are always of committed rounds.
    stated = columns["accepted"][columns["state"] == 0]
    wrong = np.flatnonzero(accepted_rows != stated)
    if wrong.size:
        first = int(wrong[0])
        message = (
            f"round {first} has {int(accepted_rows[first])} accepted rows, rounds.parquet says "
            f"{int(stated[first])}"
        )
        _demand(False, source, message)


def check_losses(columns: dict[str, NDArray], source: str) -> None:
    """Checks invariant 7.

    Args:
        columns: columns of losses.parquet, by name.
        source: the file, for messages.

    Raises:
        TraceCorrupt: a row breaks it.
    """
    device_ids, times = columns["device_id"], columns["time"]
    later = (device_ids[1:] > device_ids[:-1]) | (
        (device_ids[1:] == device_ids[:-1]) & (times[1:] >= times[:-1])
    )
    _demand(bool(later.all()), source, "rows are not sorted by device_id and time")


def check_versions(
    versions: UInt32Array,
    rounds: UInt32Array,
    max_staleness: int | None,
    source: str,
) -> None:
    """Checks invariant 8 for participations [A].

    Args:
        versions: model versions sent to the devices, [A].
        rounds: rounds that used their reports, [A].
        max_staleness: limit of the scenario; None if unknown.
        source: the file, for messages.

    Raises:
        TraceCorrupt: a participation breaks it.
    """
    # Unsigned numbers would wrap if a version is above its round.
    staleness = rounds.astype(np.int64) - versions.astype(np.int64)
    _demand(bool((staleness >= 0).all()), source, "a version is larger than its round")
    most = int(staleness.max(initial=0))
    if max_staleness is not None and most > max_staleness:
        _demand(False, source, f"a report is {most} rounds stale, max_staleness is {max_staleness}")


def check_owners(owner_ids: UInt64Array, device_ids: UInt64Array, source: str) -> None:
    """Checks invariant 9 for participations [A] in order of device.

    Args:
        owner_ids: owners of the rows, [A].
        device_ids: devices of the rows, [A].
        source: the file, for messages.

    Raises:
        TraceCorrupt: a device has two owners.
    """
    is_same = device_ids[1:] == device_ids[:-1]
    has_one = owner_ids[1:] == owner_ids[:-1]
    _demand(bool(has_one[is_same].all()), source, "a device has two owners")


def _demand(holds: bool, source: str, problem: str) -> None:
    if not holds:
        raise TraceCorrupt(
            f"{source}: {problem}, so the trace was changed or damaged; copy it from its source "
            "again"
        )
