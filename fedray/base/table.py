"""The base class of tables in files, number types of keys, and reading a table from a file."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Discriminator, Field, ValidationError

from fedray.base.errors import InputError, ScenarioError
from fedray.base.mistakes import Explained, refused
from fedray.base.parsing import read_document

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Spread = Annotated[float, Field(ge=0, le=3)]
Shape = Annotated[float, Field(ge=0.01, le=1000)]


class Table(Explained):
    """A table of a scenario. Tables of other files set the class of the error (`refusal`)."""

    refusal: ClassVar[type[InputError]] = ScenarioError


def told_apart_by(key: str, default: str) -> Discriminator:
    """Returns the discriminator of a union of tables by the value of a key.

    Args:
        key: name of the key, such as "kind".
        default: its value if it is left out.
    """

    def tag(value: Any) -> Any:
        # The value may be a table of a file, or an existing instance.
        given = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        return default if given is None else given

    return Discriminator(tag)


_Table = TypeVar("_Table", bound=Table)


def read_table_file(kind: type[_Table], file: str | Path, what: str) -> _Table:
    """Returns the table in a TOML file; validators get its directory.

    Raises:
        InputError: the file or a key is not valid; the message has a line for every problem.
    """
    path = Path(file)
    tables = read_document(path, what, "TOML")
    try:
        return kind.model_validate(tables, context={"directory": path.parent})
    except ValidationError as error:
        raise refused(InputError, f"{what} {str(path)!r}", error, kind, tables) from None
