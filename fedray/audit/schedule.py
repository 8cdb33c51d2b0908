"""Which rounds may follow one another for a device whose uploads are stored.

Rules of participation keep uploads apart; the schedule of the server keeps the rounds of one upload
apart. Both are read from the scenario once more, so that no mistake of the simulator is taken over.
"""

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array


def following_rounds(
    window_ends: Float64Array,
    window_seconds: float,
    upload_seconds: float,
    min_sep: int,
) -> Int64Array:
    """Returns the first round in which a device can take part again after each round; n for none.

    Within a window its upload is drawn at least `min_sep` rounds later. The next upload starts
    `upload_seconds` after the earlier one or later, so it may be in the first window that ends
    after the present one's start and that time. Every pair of rounds is treated separately: a chain
    of them may be longer than that of any device, never shorter.

    Args:
        window_ends: [n]; end of each round's upload window, seconds since start.
        window_seconds: length of a window.
        upload_seconds: least time between two uploads of a device.
        min_sep: least difference between two rounds of an upload.
    """
    n = window_ends.size
    rounds = np.arange(n)
    # Rounds of one window have the same end, so this is the first round of the next window.
    end_of_own = np.searchsorted(window_ends, window_ends, side="right")
    # Later than the window's last round the same upload is drawn no more.
    again = np.where(rounds + min_sep < end_of_own, rounds + min_sep, n)
    # The earlier upload may have come as soon as its window began.
    next_upload = window_ends - window_seconds + upload_seconds
    in_time = np.searchsorted(window_ends, next_upload, side="right")
    return np.minimum(again, np.maximum(end_of_own, in_time))
