"""Descriptions of keys: those that pydantic reads itself, without its cost at every start."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedray.base.descriptions import descriptions_of
from fedray.base.mistakes import Explained
from fedray.mechanisms.registry import BLT
from fedray.scenario import Scenario


class Whole(BaseModel):
    """Read by pydantic."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    first: int = 1
    """One line."""
    second: Annotated[int, Field(gt=0)]
    """Two lines, of which the second
    is indented."""
    third: int = Field(default=3, description="Said by the field.")
    """Not this."""
    fourth: int = 4

    def method(self) -> None:
        """Of no field."""


class Lazy(Explained):
    """Read by us."""

    first: int = 1
    """One line."""
    second: Annotated[int, Field(gt=0)]
    """Two lines, of which the second
    is indented."""
    third: int = Field(default=3, description="Said by the field.")
    """Not this."""
    fourth: int = 4

    def method(self) -> None:
        """Of no field."""


class Below(Lazy):
    """Inherits descriptions, and has one of its own."""

    first: int = 2
    """Another line."""


def test_the_strings_below_fields_are_their_descriptions_as_pydantic_reads_them() -> None:
    said = {name: each.description for name, each in Whole.model_fields.items()}
    assert {"fourth": None, **descriptions_of(Lazy)} == said
    assert Lazy.model_json_schema()["properties"] == Whole.model_json_schema()["properties"]


def test_fields_of_a_base_class_keep_theirs() -> None:
    assert descriptions_of(Below) == {**descriptions_of(Lazy), "first": "Another line."}
    described = Below.model_json_schema()["properties"]
    assert described["second"]["description"] == "Two lines, of which the second\nis indented."


def test_a_class_without_source_has_what_its_fields_say() -> None:
    names = {"Explained": Explained, "Field": Field, "__name__": "prompt"}
    exec(
        "class Typed(Explained):\n    key: int = Field(description='said')\n    other: int = 1",
        names,
    )
    assert descriptions_of(names["Typed"]) == {"key": "said"}


def test_no_table_is_read_or_built_before_it_is_used() -> None:
    """It would take every process longer to start."""
    for table in (Scenario, BLT):
        assert table.model_config["defer_build"]
        assert not table.model_config.get("use_attribute_docstrings")
