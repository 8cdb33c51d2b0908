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
    across_windows: bool = False,
) -> Int64Array:
    """Returns, for each round, the first later round in which the same device can take part; n if
    there is none.

    While its window lasts, an upload can be drawn again after `min_sep` rounds. A device's next
    upload comes at least `upload_seconds` after its last, which may have come at the very start of
    the window; so it can be drawn in the first later window that ends after that start plus
    `upload_seconds`. Pairs of rounds are bounded one by one: a chain of them may hold more
    participations than any device can have, never fewer.

    Args:
        window_ends: [n]; end of each round's upload window, seconds since start.
        window_seconds: length of a window.
        upload_seconds: smallest time between two uploads of a device.
        min_sep: smallest difference between two rounds of an upload.
        across_windows: whether `min_sep` holds for two uploads of a device too.
    """
    n = window_ends.size
    rounds = np.arange(n)
    # Rounds of one window have the same end, so this is the first round of the next window.
    end_of_own = np.searchsorted(window_ends, window_ends, side="right")
    # Later than the window's last round the same upload is drawn no more.
    again = np.where(rounds + min_sep < end_of_own, rounds + min_sep, n)
    # The earlier upload may have come as soon as its window began. Where it came later, the next
    # one is later too, so this is slightly early for most devices, and too late for none.
    next_upload = window_ends - window_seconds + upload_seconds
    in_time = np.searchsorted(window_ends, next_upload, side="right")
    later = np.maximum(end_of_own, in_time)
    if across_windows:
        later = np.minimum(np.maximum(later, rounds + min_sep), n)
    return np.minimum(again, later)
