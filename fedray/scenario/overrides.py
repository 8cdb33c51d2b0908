"""Overrides: `table.key=value` texts, applied to the tables of a scenario."""

import tomllib
from typing import Any

from fedray.errors import ScenarioError, shown
from fedray.parsing import parse_toml
from fedray.scenario.availability import MODELS
from fedray.scenario.training import CustomTraining, Training


def apply_override(tables: dict[str, Any], override: str) -> None:
    """Changes nested tables in place as the text says. Raises ScenarioError."""
    key, separator, text = override.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not separator or not all(names):
        raise ScenarioError(
            f"override {shown(override)} must read table.key=value, for example "
            "rounds.report_goal=3000"
        )
    table = tables
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ScenarioError(
                f"override {shown(override)}: {shown(name)} is a value, not a table; name one of "
                "its own keys"
            )
    value = _parse_value(text.strip(), override)
    if (
        names == ["availability", "model"] and isinstance(value, str) and value in MODELS
    ):  # another model has other keys
        for key in [key for key in table if key not in MODELS[value].model_fields]:
            del table[key]
    if names == ["training", "task"] and value != "custom":  # only a custom one has a file
        for key in CustomTraining.model_fields.keys() - Training.model_fields.keys():
            table.pop(key, None)
    table[names[-1]] = value


def _parse_value(text: str, override: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word, such as timer_resets_on=selected
    except ValueError as error:
        raise ScenarioError(f"override {shown(override)}: {error}; give a simpler value") from None
