"""Results become JSON documents by their types, and their types describe every key."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, NamedTuple, TypedDict

import numpy as np
import pytest
from document_keys import keys_of

from fedray.base.document import (
    Document,
    IfAny,
    InJson,
    InPlace,
    Key,
    Keys,
    NotInJson,
    Only,
    json_of,
)


class Verdict(StrEnum):
    HOLDS = "holds"


class Point(NamedTuple):
    x: float
    """Distance; NaN if unknown."""
    y: int = 0
    """Height."""


@dataclass(frozen=True)
class Box:
    center: Point
    """Center of the box."""
    colors: tuple[str, ...]
    """Colors of the box."""


@dataclass(frozen=True, slots=True)
class Figure(Document):
    where: Annotated[PurePosixPath, Key("path")]
    """File of the figure."""
    verdict: Verdict
    """verdict on the figure."""
    box: Annotated[Box | None, Keys("height=center.y colors")]
    origin: InPlace[Point]
    boxes: Annotated[tuple[Box, ...], Only("hues=colors")]
    """Boxes in the figure."""
    by_name: Mapping[Annotated[str, "shape"], Point]
    """Points by their shapes."""
    varied: InPlace[Mapping[str, float]]
    """Value of each KEY."""
    counts: NotInJson[np.ndarray] = field(default_factory=lambda: np.arange(3))
    note: ClassVar[InJson[str]] = "not rounded"
    """Note on the figure."""
    unmarked: ClassVar[int] = 3

    @property
    def total(self) -> InJson[int | None]:
        """Sum of the counts; None without counts."""
        return self.counts.sum() if self.counts.size else None

    @property
    def extra(self) -> IfAny[Point]:
        """A further point, if there is one."""
        return Point(1.0) if self.origin.y else None

    @property
    def title(self) -> str:
        return "unmarked"


def figure(box: Box | None, origin: Point) -> Figure:
    boxes = (Box(Point(0.0), ("red", "blue")),)
    path = PurePosixPath("a/b")
    return Figure(path, Verdict.HOLDS, box, origin, boxes, {"line": Point(2.5, 1)}, {"varied.k": 1})


def test_a_document_has_the_declared_keys_of_a_result() -> None:
    assert figure(Box(Point(0.0, 4), ("red",)), Point(math.nan, 2)).to_json() == {
        "path": "a/b",
        "verdict": "holds",
        "height": 4,
        "colors": ["red"],
        "x": None,
        "y": 2,
        "boxes": [{"hues": ["red", "blue"]}],
        "by_name": {"line": {"x": 2.5, "y": 1}},
        "varied.k": 1,
        "note": "not rounded",
        "total": 3,
        "extra": {"x": 1.0, "y": 0},
    }


def test_a_missing_value_is_null_or_left_out_as_its_type_says() -> None:
    document = figure(None, Point(math.inf)).to_json()
    assert document["height"] is document["colors"] is document["x"] is None
    assert "extra" not in document


def test_the_keys_of_a_type_have_names_types_and_meanings() -> None:
    assert [(key.name, key.type, key.meaning) for key in keys_of(Figure)] == [
        ("path", "text", "File of the figure."),
        ("verdict", "text", "Verdict on the figure."),
        ("height", "integer or null", "Height."),
        ("colors", "list of text or null", "Colors of the box."),
        ("x", "number or null", "Distance; null if unknown."),
        ("y", "integer", "Height."),
        ("boxes", "list of objects", "Boxes in the figure."),
        ("by_name", "object by shape", "Points by their shapes."),
        ("varied.KEY", "any", "Value of each KEY."),
        ("note", "text", "Note on the figure."),
        ("total", "integer or null", "Sum of the counts; null without counts."),
        ("extra", "object", "A further point, if there is one."),
    ]
    within = {key.name: key.within for key in keys_of(Figure) if key.within}
    assert within == {"boxes": (Box, "hues=colors"), "by_name": (Point, ""), "extra": (Point, "")}
    assert [key.name for key in keys_of(Box, "hues=colors")] == ["hues"]


def test_the_keys_of_a_typed_dict_are_its_own() -> None:
    class Printed(TypedDict):
        """What a command prints."""

        points: list[Point | None]
        """Points, in order."""

    (key,) = keys_of(Printed)
    assert (key.name, key.type, key.within) == ("points", "list of objects and nulls", (Point, ""))


def test_a_value_without_a_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="complex has no JSON form"):
        json_of({"a": [1j]})
