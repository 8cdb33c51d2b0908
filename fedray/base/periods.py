"""Calendar periods: windows of budgets, and parts of devices that a log names by time."""

from collections.abc import Callable, Mapping
from datetime import date

PERIODS: Mapping[str, Callable[[date], str]] = {
    "day": date.isoformat,
    "week": lambda day: "{}-W{:02}".format(*day.isocalendar()),
    "month": lambda day: f"{day:%Y-%m}",
    "quarter": lambda day: f"{day.year}-Q{(day.month + 2) // 3}",
    "year": lambda day: f"{day.year}",
}
"""Name of the period that has a day (UTC), by the period's kind."""
