"""A journal that cannot be saved fails the run, and loses nothing that was saved before."""

import errno
import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedray.base.errors import RunFailed
from fedray.trace.unfinished import Journal
from fedray.wire.messages import Settlement


def settlement(attempt: int) -> Settlement:
    one = np.ones(1)
    return Settlement(
        attempt,
        attempt,
        one.astype(np.uint64),
        one,
        one,
        one.astype(np.uint8),
        one.astype(np.uint32),
        one.astype(bool),
        one.astype(np.uint32),
    )


def test_a_journal_file_that_cannot_be_read_back_fails_the_run(tmp_path: Path, monkeypatch) -> None:
    journal = Journal(tmp_path, "run")
    journal.append(settlement(0))
    journal.save({"state": np.zeros(1)})
    journal.append(settlement(1))

    def unreadable(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(hashlib, "file_digest", unreadable)
        with pytest.raises(RunFailed, match=r"Input/output error\); check the disk, then resume"):
            journal.save({"state": np.ones(1)})
    earlier = Journal(tmp_path, "run")
    assert earlier.load()["state"] == 0.0
    # The settlement is still in memory, and the next save writes it.
    journal.save({"state": np.ones(1)})
    later = Journal(tmp_path, "run")
    assert later.load()["state"] == 1.0
    assert [each.attempt for batch in later.batches() for each in batch] == [0, 1]
