"""What results have in common in a notebook: tables, and figures where there are some.

Results lie below what draws them, and imports point downward only; so `fedray.notebook` is looked
up by its name, when a result is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from fedray.base.document import Document


@dataclass(frozen=True, slots=True)
class Drawing:
    """Figures of a result, drawn."""

    svgs: Mapping[str, str]
    """A document of SVG for each figure, by its name."""

    def __repr__(self) -> str:
        return f"<Drawing of {', '.join(self.svgs) or 'nothing'}>"

    def _repr_html_(self) -> str:
        """The figures on white, which their black words need in dark notebooks."""
        # What stands before the element, such as the XML declaration, has no place within HTML.
        parts = [svg[svg.index("<svg") :] for svg in self.svgs.values()]
        return "".join(f'<div style="background: #fff">{part}</div>' for part in parts)


class Result(Document):
    """Mixin for results that notebooks show as tables (`TABLES` of `fedray.notebook`)."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Its line and its tables, as HTML that loads nothing."""
        return resolve_name("fedray.notebook:html_of")(self)


class DrawnResult(Result):
    """Mixin for results that have figures too (`FIGURES` of `fedray.notebook`)."""

    __slots__ = ()

    def plot(self, names: str | Sequence[str] = ()) -> Drawing:
        """Draws the figures of its page.

        Args:
            names: which figures, by the keys of `Drawing.svgs`; empty for all.

        Returns:
            The figures as SVG, which a notebook shows.

        Raises:
            InputError: a name is not among them.
            MissingExtra: matplotlib is not installed, and a figure needs it.
        """
        return resolve_name("fedray.notebook:drawing_of")(self, names)
