"""The table `data`: where the examples of the devices come from."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from fedray.table import Table


class LanguageData(Table):
    """A seeded synthetic language; see clients/data/language.py.

    How many sentences a device has is drawn, as the table `population` says.
    """

    kind: Literal["language"] = "language"
    """A synthetic language."""


def _kind(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "language" if kind is None else kind


AnyData = Annotated[
    Annotated[LanguageData, Tag("language")],
    Discriminator(_kind),
]
"""The tables of all kinds of data, told apart by `kind`."""
