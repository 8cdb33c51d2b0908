"""The keys of what is read from files and written to them."""

from functools import cache

from fedray.base.kept import SORTS
from fedray.clients.availability.supply import Supply
from fedray.documents.keys import JsonKey, Keys, keys_of, meaning_of, text
from fedray.scenario import Scenario
from fedray.scenario.keys import Key, KeyTable
from fedray.trace.columns import Column
from fedray.trace.imported import LeftOut
from fedray.watch.entries import Entry, Listing, Privacy, TaskSoFar


def import_keys() -> Keys:
    """Of `fedray import`."""
    times = {
        "column": JsonKey("text or null", "The log's column of times."),
        "form": JsonKey("text or null", "What its values are."),
        "rounds_file_form": JsonKey("text or null", "What the times of the rounds file are."),
        "origin": JsonKey("number", "The moment that is 0 in the trace, in seconds of the log."),
    }
    return {
        "format": text("Name of the format of run.json."),
        "version": JsonKey("integer", "Version of that format."),
        "digest": text("Digest of the columns of all parts."),
        "devices_digest": text("Digest of the names of the devices."),
        "rounds_digest": text("Digest of the file of the log's rounds."),
        "log": text("The log that was read."),
        "device_columns": JsonKey("list of text", "Its columns that name a device."),
        "round_column": JsonKey("text or null", "Its column of rounds."),
        "where": JsonKey("list of text", "The conditions of `--where`."),
        "numbering": text("How rounds of the log became numbers from 0."),
        "rounds_file": JsonKey("text or null", "The file that lists the rounds, if one was given."),
        "rounds": JsonKey("integer", "Rounds that released a model."),
        "empty_rounds": JsonKey("integer", "Of them, those without a participation."),
        "rounds_out_of_order": JsonKey(
            "integer", "Rounds that stand in another order by time than by number."
        ),
        "repeats": text("What further rows of one device in one round are: `--repeats`."),
        "repeated_rows": JsonKey("integer", "How many such rows there are."),
        "times": JsonKey("object or null", "Where times come from; null without any.", times),
        "rows_read": JsonKey("integer", "Rows of the log."),
        "filtered_rows": JsonKey("integer", "Of them, those that `--where` left out."),
        "rows": JsonKey("integer", "Participations of the trace."),
        "devices": JsonKey("integer", "Devices that took part at least once."),
        "left_out": JsonKey("list of objects", "Rows that are no participation.", keys_of(LeftOut)),
        "written": text("When it was written: UTC, as ISO 8601 has it."),
        "packages": JsonKey("object", "Versions of Python and of packages, by their names."),
        "document_digest": text("Digest of run.json itself."),
    }


def population_keys() -> Keys:
    """Of `fedray population`."""
    file = {
        "path": text("The file."),
        "devices": JsonKey("integer", "Devices whose sessions are in it."),
        "days": JsonKey("integer", "Simulated days."),
        **_sessions(),
    }
    return {
        "devices": JsonKey("integer", "Devices of the population at the start."),
        "eligible_at_once": JsonKey(
            "object",
            "Devices that are eligible at once at the full hours of the first week: estimates "
            "from a fixed sample.",
            keys_of(Supply, "least mean most"),
        ),
        "file": JsonKey("object or null", "What was written; null without `--sessions`.", file),
    }


def session_keys() -> Keys:
    """Of `fedray sessions`."""
    return {
        "devices": JsonKey("integer", "Devices of the trace that was read."),
        "days": JsonKey("integer", "Days until the last session ends, rounded up."),
        "path": text("The file that was written."),
        **_sessions(),
    }


def scenario_keys() -> Keys:
    """Of `fedray scenarios`."""
    scenario = {
        "name": text("What commands take in place of a file."),
        "file": text("Path of the file."),
        **keys_of(Scenario, "description"),
    }
    return {
        "scenarios": JsonKey("list of objects", "Those that ship with fedray.", scenario),
    }


def init_keys() -> Keys:
    """Of `fedray init`."""
    return {
        "file": text("The scenario file that was written."),
        "scenario_digest": text("Digest of the scenario."),
    }


def schema_keys() -> Keys:
    """Of `fedray schema` where a table is named."""
    row = {**keys_of(Column), **keys_of(Key)}
    part = {
        "name": text("The table, or the file of a trace."),
        "kind": text(meaning_of(KeyTable, "kind")),
        "rows": JsonKey("list of objects", "Its keys or columns, in order.", row),
    }
    return {
        "table": text("What was asked for."),
        "parts": JsonKey("list of objects", "One, or one for each kind of the table.", part),
    }


def cache_keys() -> Keys:
    """Of `fedray cache`."""
    content = {
        "folder": text("Where it is."),
        "mebibytes": JsonKey("number", "Its size in MiB."),
        "unused_days": JsonKey("number", "Days since it was opened last."),
    }
    entries = {
        "sort": text(f"Which entries: {', '.join(SORTS)}."),
        "folder": text("Where they are."),
        "kept": JsonKey("integer", "How many are there."),
        "kept_mebibytes": JsonKey("number", "Their size in MiB."),
        "deleted": JsonKey("integer", "How many were deleted now."),
        "deleted_mebibytes": JsonKey("number", "The size of these in MiB."),
    }
    return {
        "kept": JsonKey("list of objects", "What is kept of data files.", content),
        "deleted": JsonKey("list of objects", "What was deleted of data files now.", content),
        "entries": JsonKey("list of objects", "What else is kept, sort by sort.", entries),
    }


def status_keys() -> Keys:
    """Of `fedray status`."""
    privacy = keys_of(Privacy, limit=JsonKey("object", ""))
    task = keys_of(TaskSoFar, privacy=JsonKey("object or null", "", privacy))
    entry = keys_of(
        Entry,
        evaluation=JsonKey("object", ""),
        privacy=JsonKey("object or null", "", privacy),
        tasks=JsonKey("object by task", "", task),
    )
    return keys_of(Listing, entries=JsonKey("list of objects", "", entry))


@cache
def _sessions() -> Keys:
    return {
        "sessions": JsonKey("integer", "Sessions that were written."),
        "format": text("Format of the file."),
    }
