"""The source grows only in commits that say why."""

import json

import growth


def beyond(found: dict, limits: dict) -> list[str]:
    """Figures beyond their limits; only the share of comments may not fall."""
    result = []
    for name, figures in found.items():
        for what, value in figures.items():
            limit = limits.get(name, {}).get(what, 0)
            if value < limit if what == "comments %" else value > limit:
                result.append(f"{name}: {what} {value:g}, limit {limit:g}")
    return result


def test_nothing_grows_without_a_reason() -> None:
    """Take something out, or raise the limit in growth.json (`growth.py --freeze`) in a commit that says why."""
    assert beyond(growth.today(), json.loads(growth.LIMITS.read_text())) == []


def test_growth_and_lost_comments_are_found() -> None:
    limits = {"a": {"lines": 10, "comments %": 4.0}}
    assert beyond({"a": {"lines": 10, "comments %": 4.0}}, limits) == []
    assert beyond({"a": {"lines": 11, "comments %": 4.0}}, limits) == ["a: lines 11, limit 10"]
    assert beyond({"a": {"lines": 9, "comments %": 3.9}}, limits) == ["a: comments % 3.9, limit 4"]
    assert beyond({"b": {"lines": 1}}, limits) == ["b: lines 1, limit 0"]
