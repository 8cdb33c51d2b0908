"""Tables, notebook display and figures that results share.

Results lie below the code that shows them, and imports point downward only. So each class names its
functions, which are imported when a result is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar

from fedray.base.document import Document, InJson
from fedray.base.errors import InputError
from fedray.base.extras import missing_extra


@dataclass(frozen=True, slots=True)
class Drawing:
    """Figures of a result, drawn."""

    figures: Mapping[str, Any]
    """A `matplotlib.figure.Figure` for each figure, by its name, whose axes and texts may be
    changed."""

    @property
    def svgs(self) -> Mapping[str, str]:
        """A document of SVG for each figure, by its name."""
        save = resolve_name("fedray.report.files:saved")
        return {name: save(each, "svg").decode() for name, each in self.figures.items()}

    def __repr__(self) -> str:
        return f"<Drawing of {', '.join(self.figures) or 'nothing'}>"

    def _repr_html_(self) -> str:
        """The figures on a white background, since their black text is unreadable in dark
        notebooks."""
        # HTML does not allow the XML declaration or any other text before the element.
        parts = [svg[svg.index("<svg") :] for svg in self.svgs.values()]
        return "".join(f'<div style="background: #fff">{part}</div>' for part in parts)


class Result(Document):
    """Mixin for results with tables."""

    __slots__ = ()

    TABLES: ClassVar[str]
    """Function that makes the tables of a result, as "module:name"."""
    SUBJECT: ClassVar[str]
    """Function that returns the subject of a result, as "module:name"."""
    HEADLINE: ClassVar[str] = ""
    """Function that makes the answer of a result, as "module:name"; empty without one."""

    @property
    def headline(self) -> str:
        """The answer in a sentence or two, which stands above the tables; empty for results without
        one, and for audits, whose answer is `verdict`."""
        return resolve_name(self.HEADLINE)(self) if self.HEADLINE else ""

    @property
    def of(self) -> InJson[Any]:
        """Subject of the result's figures (`fedray.report.subject.Subject`): population,
        condition, runs, unit, estimand and sample."""
        return resolve_name(self.SUBJECT)(self)

    def tables(self) -> list[Any]:
        """Returns the result as tables (`fedray.report.table.Table`), each with its subject."""
        of = self.of
        return [each.under(of) for each in resolve_name(self.TABLES)(self)]

    def _repr_html_(self) -> str:
        """The summary line of the result and its tables, as HTML that loads nothing."""
        tables = [each.brief() for each in self.tables()]
        line = self.headline or repr(self)
        return resolve_name("fedray.report.page:render_fragment")(line, tables)


class DrawnResult(Result):
    """Mixin for results with tables, figures and a page."""

    __slots__ = ()

    FIGURES: ClassVar[str]
    """Function that makes the figures of a result, as "module:name"."""
    PAGE: ClassVar[str]
    """Function that makes the page of a result, as "module:name"."""

    def figures(self) -> list[Any]:
        """Returns the figures of the result's page (`fedray.report.figure`), each with its
        subject."""
        of = self.of
        return [each.under(of) for each in resolve_name(self.FIGURES)(self)]

    def page(self) -> str:
        """Returns the page of the result: one HTML document that loads nothing."""
        return resolve_name(self.PAGE)(self)

    def plot(self, names: str | Sequence[str] = (), style: str = "wide") -> Drawing:
        """Draws the figures of the result's page.

        Args:
            names: figures to draw, by the keys of `Drawing.figures`; empty for all.
            style: paper (3.25 inches wide), wide (6.75) or slides.

        Returns:
            The figures, which a notebook shows.

        Raises:
            InputError: a figure has another name.
            MissingExtra: matplotlib is not installed, and a figure needs it.
        """
        figures = {each.name: each for each in self.figures()}
        # A string is a sequence too, whose letters would be taken for names.
        chosen = [names] if isinstance(names, str) else names
        for name in chosen:
            if name not in figures:
                raise InputError(
                    f"names={name!r} is no figure of this {type(self).__name__}; it has "
                    f"{', '.join(figures) or 'none'}"
                )
        kept = [each for name, each in figures.items() if not chosen or name in chosen]
        try:
            draw = resolve_name("fedray.report.files:drawn_figure")
            return Drawing({each.name: draw(each, style) for each in kept})
        except ModuleNotFoundError as error:
            # Drawing needs an extra, and the error names the command that installs it.
            if (lacks := missing_extra(error)) is not None:
                raise lacks from None
            raise
