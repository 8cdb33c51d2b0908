"""No row of the mission goes out: each is in capabilities.json, with files that hold what users name of it.

A row is never removed for lines. Whoever removes one, or a kind, a command or a key of one, changes the list below too, in a commit
that says who no longer needs it.
"""

import copy
import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import growth
import pytest

ROWS: dict[str, tuple[str, ...]] = {
    "population": (
        *("habit", "conditions", "poisson", "always_on", "replay", "custom"),
        *("classes", "joins_per_day", "lifetime_days", "time_zones", "HistoryLosses"),
    ),
    "timers and policies": (
        *("timer", "swor", "min_sep", "most_per_period", "data_available", "timer_violators"),
        *("max_participations", "history_loss_per_day", "local_day", "hold", "from_round"),
    ),
    "rounds of all modes": (
        *("on-device", "buffered", "upload-then-train", "reservoir", "goal", "at_least"),
        *("enumeration", "thinning", "cyclic", "poisson", "min_sep", "cyclic_poisson", "all"),
    ),
    "mechanisms": (
        *("blt", "toeplitz", "band-fhu", "bisr", "identity", "banded", "dense", "matrix"),
        "integer-toeplitz",
        *("tree", "tree-full", "optimize", "buffers", "bands", "is_fixed_order", "workload"),
    ),
    "sensitivity": ("Sensitivity", "PatternSensitivities", "MinSep", "theorem", "worst_pattern"),
    "three guarantees": ("observed", "enforced", "claimed", "trace_sensitivity"),
    "persons": ("Persons", "PersonAudit", "OwnersOfDevices"),
    "sampling": (
        "poisson",
        "fixed_size",
        "in_turn",
        "sampled_release",
        "composed_epsilon",
        "LossTails",
    ),
    "claims": (
        *("noise_multiplier", "rounds", "min_sep", "max_participations", "timer_hours"),
        *("frontier", "sampling", "rho", "epsilon"),
    ),
    "ledger": ("budget", "reserve", "charge", "cancel", "statement", "person"),
    "encodings": (*("fixed_point", "secagg", "devices", "local", "coefficient_bits", "SumStore"),),
    "training": (
        *("fedavg", "fedprox", "fedsgd", "sgd", "adagrad", "adam", "yogi", "cosine"),
        *("per_layer", "adaptive", "mean", "clipped"),
        *("next_word", "keyboard_lstm", "image_cnn", "mlp", "logistic", "quadratic"),
    ),
    "questions": (
        *("count", "sum", "mean", "histogram", "quantiles", "distinct"),
        *("open_histogram", "prefix_tree", "evaluation"),
        *("server", "enclave", "devices", "shuffled", "local"),
    ),
    "canaries": ("canary", "audit_model", "phrases"),
    "stress": ("stress", "estimated", "actual", "what_if", "train"),
    "plan": ("plan", "timers", "noise_per_report", "least", "remedies"),
    "fits": ("fit_log", "fit_min_sep", "vary", "HabitFit"),
    "reproductions": (
        *("reproduce", "blt", "coverage", "dp_lstm", "flash", "shakespeare", "trust"),
        *("amplified", "amplified_errors", "blt_cost", "learning", "signal_to_noise"),
        "clip_schedule",
        *("gboard", "gboard_predict", "gboard_privacy", "gboard_recipes"),
    ),
}
"""Rows of the mission, each with words of it: kinds, commands, keys, options, public names."""


NAMED = re.compile(r"""["']([\w-]+)["']|^ *(?:def |class )?(\w+)[:(]""", re.MULTILINE)
"""A whole string, or the name of a field, a parameter, a function or a class."""


@functools.cache
def words_of(file: Path) -> frozenset[str]:
    """Words that a file defines; a reproduction is named by its module."""
    found = NAMED.findall(file.read_text(encoding="utf-8"))
    return frozenset({file.stem, *itertools.chain.from_iterable(found)})


def lost(row: str, known: growth.Capabilities) -> list[str]:
    """One line for a row without files, for each file that does not exist, and for each word that no file defines."""
    named = [each["files"] for each in known.values() if each.get("row") == row]
    files = [growth.ROOT / file for file in itertools.chain.from_iterable(named)]
    if not files:
        return [f"{row}: no capability has this row"]
    words = set[str]().union(*(words_of(file) for file in files if file.exists()))
    return [
        *(f"{row}: no such file: {file}" for file in files if not file.exists()),
        *(f"{row}: no file defines {word}" for word in ROWS[row] if word not in words),
    ]


def test_every_row_that_is_marked_is_in_the_list() -> None:
    assert {each["row"] for each in growth.capabilities().values() if "row" in each} == set(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_mission_is_there_and_its_loss_would_be_found(row: str) -> None:
    known = growth.capabilities()
    names = [name for name, each in known.items() if each.get("row") == row]
    assert lost(row, known) == []

    def lost_after(change: Callable[[dict[str, Any]], object]) -> list[str]:
        changed = copy.deepcopy(known)
        for name in names:
            change(changed[name])
        return lost(row, changed)

    assert lost_after(lambda each: each.pop("row")) == [f"{row}: no capability has this row"]
    assert lost_after(lambda each: each["files"].clear()) == [f"{row}: no capability has this row"]
    assert len(lost_after(lambda each: each["files"].append("gone.py"))) == len(names)
    # Nor does another file stand in for those of the row.
    assert lost_after(lambda each: each.update(files=["fedray/base/rng.py"]))
