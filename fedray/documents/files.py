"""The keys of what is imported from logs and exported to files."""

from fedray.documents.keys import JsonKey, Keys, keys_of, text
from fedray.trace.imported import LeftOut


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
