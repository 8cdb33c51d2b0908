"""The privacy of every published run, from its rounds, min-sep, participations and noise multiplier, to the printed digits."""

import dataclasses
import json

from fedray.scenarios.gboard_privacy import privacy_of
from fedray.scenarios.gboard_rows import published_runs


def test_every_printed_rho_and_epsilon_is_reproduced() -> None:
    results = [privacy_of(run) for run in published_runs()]
    assert len(results) == 13
    assert all(result.agrees for result in results)
    squares = {result.name: result.squared_sensitivity for result in results}
    for name, square in {
        "nwp-de-DE": 47,
        "nwp-pt-PT": 182,
        "nwp-en-US": 128,
        "nwp-it-IT": 70,
        "otf-es-ES": 87,
        "otf-pt-PT": 97,
    }.items():
        assert abs(squares[name] - square) < 1e-9


def test_the_convention_of_the_gap_matters() -> None:
    """en-IN: the published 170 counts the rounds between; read as the gap itself it would cost 1.18 instead of the printed 1.14."""
    run = next(run for run in published_runs() if run.name == "nwp-en-IN")
    assert abs(privacy_of(run).squared_sensitivity - 112) < 1e-9
    wrong = privacy_of(dataclasses.replace(run, rounds_between=run.rounds_between - 1))
    assert abs(wrong.squared_sensitivity - 116) < 1e-9
    assert not wrong.agrees


def test_the_command_prints_it(fedray_command) -> None:
    code, stdout, _ = fedray_command("reproduce", "gboard-privacy", "--rows", "pt-PT", "--json")
    document = json.loads(stdout)
    assert code == 0
    assert [row["name"] for row in document["rows"]] == ["nwp-pt-PT", "otf-pt-PT"]
    assert [round(row["epsilon"], 2) for row in document["rows"]] == [13.69, 9.56]
    code, _, stderr = fedray_command("reproduce", "gboard-privacy", "--set", "seed=1")
    assert (code, stderr.count("\n")) == (2, 1)
