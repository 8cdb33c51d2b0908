"""From a target to a noise multiplier, by the command and the library; and mechanism files wherever a mechanism stands."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedray.base.errors import ScenarioError
from fedray.base.rounding import up
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.mechanisms.figures import calibrated_figures, mechanism_figures
from fedray.mechanisms.files import write_strategy
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Banded, Identity, Tree, TreeFull
from fedray.scenario import Scenario

SETTING = ("--rounds", "60", "--min-sep", "20", "--max-participations", "3")


@pytest.fixture
def tree(tmp_path: Path) -> str:
    write_strategy(Tree(), tmp_path / "tree.json")
    return str(tmp_path / "tree.json")


@pytest.mark.parametrize("target", [{"epsilon": 0.5}, {"epsilon": 8.0}, {"rho": 0.2}])
def test_the_least_noise_multiplier_meets_its_target_and_a_little_less_does_not(
    target: dict[str, float],
) -> None:
    participation = MinSep(60, 20, 3)
    for strategy in (Tree(), Identity(), BLT(theta=(0.9,), omega=(0.3,))):
        found = calibrated_figures(strategy, participation, 1e-8, **target)
        assert found.noise_multiplier is not None
        less = mechanism_figures(strategy, participation, found.noise_multiplier * (1 - 1e-6), 1e-8)
        for name, most in target.items():
            assert getattr(found, name) <= most < getattr(less, name)


def test_figures_at_an_epsilon_are_those_of_its_noise_multiplier(tree: str, fedray_command) -> None:
    code, out, _ = fedray_command(
        "mechanism", tree, *SETTING, "--epsilon", "4", "--delta", "1e-9", "--json"
    )
    assert code == 0
    z = json.loads(out)["noise_multiplier"]
    code, out, _ = fedray_command(
        "mechanism", tree, *SETTING, "--noise-multiplier", str(z), "--delta", "1e-9", "--json"
    )
    document = json.loads(out)
    assert 3.9999 < document["epsilon"] <= 4.0
    assert document["epsilon"] == gaussian_epsilon(document["sensitivity"] / z, 1e-9)


def test_several_mechanisms_at_one_epsilon_have_a_noise_multiplier_each(
    fedray_command,
) -> None:
    given = ("mechanism", "tree", "identity", *SETTING, "--epsilon", "4")
    figures = json.loads(fedray_command(*given, "--json")[1])["mechanisms"]
    assert all(3.9999 < each["epsilon"] <= 4.0 for each in figures.values())
    code, out, _ = fedray_command(*given)
    assert code == 0
    for name, each in figures.items():
        # The first line is a sentence.
        (line,) = (line for line in out.splitlines()[1:] if line.split()[:1] == [name])
        assert up(each["noise_multiplier"], 6) in line.split()


def test_the_printed_noise_multiplier_meets_the_target() -> None:
    """Of many targets; noise that was rounded to twelve digits missed half of them."""
    rng = np.random.default_rng(5)
    participation = MinSep(8, 4, 2)
    for place, target in enumerate((10.0 ** rng.uniform(-2, 1, 200)).tolist()):
        name = "epsilon" if place % 10 == 0 else "rho"
        figures = calibrated_figures(Tree(), participation, 1e-8, **{name: target})
        printed = dict(figures.tables()[0].rows)["noise multiplier"]
        assert 0.0 <= float(printed) - figures.noise_multiplier < 1e-6 + 1e-12
        found = mechanism_figures(Tree(), participation, float(printed), 1e-8)
        assert getattr(found, name) <= target


def test_without_a_noise_multiplier_there_is_no_epsilon(tree: str, fedray_command) -> None:
    _, out, _ = fedray_command("mechanism", tree, *SETTING, "--json")
    document = json.loads(out)
    assert [document[name] for name in ("noise_multiplier", "mu", "rho", "epsilon")] == [None] * 4
    _, out, _ = fedray_command("mechanism", tree, *SETTING)
    assert "epsilon" not in out


def test_amplified_figures_are_hypothetical_and_refused_where_nothing_is_proven(
    tmp_path: Path, tree: str, fedray_command
) -> None:
    write_strategy(Identity(), tmp_path / "identity.json")
    sampled = ("--sampling", "0.01", "--noise-multiplier", "1", "--delta", "1e-6")
    code, out, _ = fedray_command(
        "mechanism", str(tmp_path / "identity.json"), *SETTING, *sampled, "--json"
    )
    assert code == 0
    document = json.loads(out)
    hypothetical = document["hypothetical"]
    assert hypothetical["epsilon"] <= hypothetical["renyi_epsilon"] < document["epsilon"]
    assert "Poisson-sampled" in document["hypothetical"]["assumption"]
    code, out, err = fedray_command("mechanism", tree, *SETTING, *sampled)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    code, _, _ = fedray_command(
        "mechanism",
        str(tmp_path / "identity.json"),
        *SETTING,
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        *sampled[:2],
    )
    assert code == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--epsilon", "1", "--rho", "1"], "exactly one target"),
        (["--epsilon", "0"], "epsilon=0"),
        (["--rho", "-1"], "rho=-1"),
        (["--rho", "1", "--sampling", "0.1"], "no zCDP is proven"),
        (["--epsilon", "1", "--random-rounds"], "give the sampling probability too"),
        (["--epsilon", "1", "--delta", "2"], "delta=2"),
        (["--epsilon", "1", "--noise-multiplier", "3"], "leave one out"),
    ],
)
def test_impossible_targets_get_one_line(
    tree: str, fedray_command, options: list[str], expected: str
) -> None:
    code, out, err = fedray_command("mechanism", tree, *SETTING, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_a_directory_that_is_called_like_a_kind_does_not_hide_it(
    fedray_command, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = fedray_command("mechanism", "tree", *SETTING, "--rho", "1")
    (tmp_path / "tree").mkdir()  # as `fedray train --out tree` makes
    assert expected[0] == 0
    assert fedray_command("mechanism", "tree", *SETTING, "--rho", "1") == expected


SEPARATED = ("participation.timer_hours=0", "participation.round_separation=2")


def test_the_command_calibrates_to_a_trace(trace_of, small, tree: str, fedray_command) -> None:
    path = str(trace_of([[0, 3], [1, 4], [2], [5]], 6, small(*SEPARATED)).path)
    options = (path, "--epsilon", "2", "--delta", "1e-8")
    code, out, _ = fedray_command("calibrate", *options, "--mechanism", tree, "--json")
    assert code == 0
    document = json.loads(out)
    z = document["observed"]["noise_multiplier"]
    noise = ("--noise-multiplier", str(z), "--delta", "1e-8", "--json")
    code, out, _ = fedray_command("audit", path, "--mechanism", tree, *noise)
    assert code == 0
    (observed,) = (each for each in json.loads(out)["guarantees"] if each["name"] == "observed")
    assert observed["epsilon"] == document["observed"]["epsilon"] <= 2.0
    # A kind is as good as its file.
    kind = fedray_command("calibrate", *options, "--mechanism", "tree", "--json")[1]
    assert json.loads(kind) == document
    assert fedray_command("audit", path, "--mechanism", "tree", *noise)[1] == out
    # The run's own mechanism is the default.
    code, out, err = fedray_command("--quiet", "calibrate", *options)
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert words.startswith("Noise of blt for epsilon 2 at delta 1e-08, by ")
    assert "The run had the noise multiplier 7." in words
    assert "it is no guarantee for a run to come" in words
    rows = {line[:12].strip(): line.split() for line in out.splitlines() if line[2:].strip()}
    assert (rows["enforced"][-1], rows["observed"][-1]) == ("yes", "no")


def test_a_trace_that_enforces_nothing_shows_the_observed_noise_alone(
    trace_of, small, fedray_command
) -> None:
    """The trace breaks its timer of 12 h."""
    path = str(trace_of([[0, 1], [2]], 3, small()).path)
    code, out, _ = fedray_command("calibrate", path, "--rho", "0.2")
    assert code == 0
    assert "\n  observed " in out
    assert "\n  enforced " not in out
    assert "enforced  is not known: devices of this trace took part more often" in out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["TRACE"], "exactly one target"),
        (["TRACE", "--mechanism", "bisr", "--rho", "1"], "`fedray optimize bisr`"),
        (["TRACE", "--mechanism", "blt", "--rho", "1"], "fedray optimize blt"),
        (["TRACE", "--mechanism", "none.json", "--rho", "1"], "'none.json' cannot be read"),
        (
            ["TRACE", "--mechanism", "short.json", "--rho", "1"],
            "is for 4 rounds, and the trace has 6",
        ),
        (["MISSING", "--mechanism", "tree", "--rho", "1"], "'MISSING' is not a directory"),
        (["--rho", "1"], "Missing argument 'TRACE'"),
    ],
)
def test_what_cannot_be_calibrated_to_a_trace_gets_one_line(
    trace_of, small, tmp_path: Path, monkeypatch, fedray_command, options: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_strategy(TreeFull(rounds=4), tmp_path / "short.json")
    path = str(trace_of([[0, 3], [1, 4], [2], [5]], 6, small(*SEPARATED)).path)
    given = [path if each == "TRACE" else each for each in options]
    code, out, err = fedray_command("--quiet", "calibrate", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_a_mechanism_file_stands_in_a_scenario(tmp_path: Path, small, tree: str) -> None:
    text = small().to_toml()
    start = text.index("[privacy.mechanism]")
    (tmp_path / "s.toml").write_text(
        text[:start].replace("[privacy]\n", '[privacy]\nmechanism = "tree.json"\n')
    )
    read = Scenario.from_toml(tmp_path / "s.toml")
    assert read.privacy.mechanism == Tree()
    assert read.to_tables()["privacy"]["mechanism"]["kind"] == "tree"
    assert (
        small(f"privacy.mechanism={tree}").digest
        == small('privacy.mechanism={kind = "tree"}').digest
    )
    with pytest.raises(ScenarioError, match=r"privacy.mechanism.*nothing.json"):
        small("privacy.mechanism=nothing.json")


def test_a_matrix_file_stands_in_a_scenario_and_is_known_by_its_content(
    tmp_path: Path, small
) -> None:
    import numpy as np

    write_strategy(Banded.from_matrix(np.eye(12), "m.npy"), tmp_path / "m.json")
    scenario = small(f"privacy.mechanism={tmp_path / 'm.json'}")
    assert isinstance(scenario.privacy.mechanism, Banded)
    assert scenario.with_overrides("seed=9").privacy.mechanism == scenario.privacy.mechanism
