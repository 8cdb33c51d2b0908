"""Work on several threads: in order, bounded, and with the first error."""

import threading
import time
from collections.abc import Iterator

import pytest

from fedray.base.threads import AHEAD, MOST_THREADS, in_order


def test_answers_come_in_the_order_of_their_parts() -> None:
    def slow_at_first(part: int) -> tuple[int, str]:
        time.sleep(0.02 if part == 0 else 0.0)
        return part, threading.current_thread().name

    made = list(in_order(slow_at_first, range(50)))
    assert [part for part, _ in made] == list(range(50))
    assert threading.current_thread().name not in {name for _, name in made}


def test_no_more_parts_are_asked_for_than_are_needed_soon() -> None:
    asked: list[int] = []

    def parts() -> Iterator[int]:
        for part in range(1000):
            asked.append(part)
            yield part

    answers = in_order(lambda part: part, parts())
    assert [next(answers) for _ in range(3)] == [0, 1, 2]
    answers.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(asked) <= 3 + MOST_THREADS + AHEAD


def test_an_error_comes_in_the_place_of_its_part() -> None:
    def fail_at_two(part: int) -> int:
        if part == 2:
            raise ValueError("two")
        return part

    answers = in_order(fail_at_two, range(9))
    assert [next(answers), next(answers)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(answers)
