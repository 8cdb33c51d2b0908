"""`fedray optimize` and `fedray mechanism`: what they print, what they write, one line for every mistake; matrices in scenarios."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import slow_twins as reference

from fedray.audit.auditing import audit_trace
from fedray.base.errors import ScenarioError
from fedray.mechanisms.accounting.events import MinSepSampled
from fedray.mechanisms.accounting.monte_carlo import monte_carlo_epsilon
from fedray.mechanisms.figures import mechanism_figures
from fedray.mechanisms.files import read_strategy, write_strategy
from fedray.mechanisms.optimize.design import KINDS, MechanismRequest, optimize_mechanism
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Banded, BandFHU, Identity, Matrix, Toeplitz, Tree
from fedray.mechanisms.triangular import lower_factor
from fedray.mechanisms.workload import Workload
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario

SETTING = ["--rounds", "60", "--min-sep", "12", "--max-participations", "4"]
KEYS = (
    *(
        "kind",
        "rounds",
        "min_sep",
        "max_participations",
        "sensitivity",
        "sensitivity_is_exact",
        "max_error",
        "rms_error",
    ),
    *("max_loss", "rms_loss", "rho", "epsilon", "delta", "parameters"),
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_optimised_written_and_read_with_the_same_figures(
    fedray_command, kind: str, tmp_path: Path
) -> None:
    out = tmp_path / "m.json"
    code, text, _ = fedray_command("optimize", kind, *SETTING, "--out", str(out), "--json")
    assert code == 0
    found = json.loads(text)
    assert set(KEYS) <= found.keys()
    code, text, _ = fedray_command("mechanism", str(out), *SETTING, "--json")
    assert code == 0
    again = json.loads(text)
    assert {k: v for k, v in again.items() if k != "parameters"} == {
        k: v for k, v in found.items() if k not in ("seconds", "parameters")
    }
    code, text, _ = fedray_command(
        "mechanism", str(out), *SETTING, "--json", "--noise-multiplier", "3"
    )
    assert code == 0
    found = json.loads(text)
    assert found["rho"] == pytest.approx(found["sensitivity"] ** 2 / 18)
    assert found["max_loss"] == pytest.approx(found["sensitivity"] * found["max_error"])
    assert reference.gaussian_delta(found["sensitivity"] / 3, found["epsilon"]) <= found["delta"]


def test_people_get_a_table(fedray_command, tmp_path: Path) -> None:
    code, out, _ = fedray_command(
        "optimize", "blt", *SETTING, "--buffers", "2", "--out", str(tmp_path / "b.json")
    )
    assert code == 0
    assert "MaxLoss / RmsLoss" in out
    assert "(exact)" in out
    assert f"mechanism  {tmp_path / 'b.json'}" in out
    code, out, _ = fedray_command(
        "mechanism",
        str(tmp_path / "b.json"),
        "--rounds",
        "100",
        "--min-sep",
        "3",
        "--max-participations",
        "9",
    )
    assert code == 0
    assert "100, 3, 9" in out


def test_several_mechanisms_have_the_figures_that_each_has_alone(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = "i.json"
    write_strategy(Identity(), file)
    given = (file, "identity", "bisr")
    several = json.loads(fedray_command("mechanism", *given, *SETTING, "--json")[1])["mechanisms"]
    assert list(several) == list(given)
    for name, figures in several.items():
        alone = json.loads(fedray_command("mechanism", name, *SETTING, "--json")[1])
        assert alone == figures
    assert several[file] == several["identity"]
    code, out, _ = fedray_command("mechanism", *given, *SETTING)
    assert code == 0
    for name, figures in several.items():
        *_, line = (
            each
            for each in out.splitlines()
            if each.split()[:1] == [Path(name).stem] and " kind " not in each
        )
        assert line.split()[-2:] == [f"{figures[key]:.6f}" for key in ("max_loss", "rms_loss")]


def test_prefix_sums_are_the_workload_everywhere_and_a_row_says_where_a_file_has_another(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    """What `optimize` makes by default is compared like with like by `mechanism`."""
    monkeypatch.chdir(tmp_path)
    assert fedray_command("optimize", "blt", *SETTING, "--out", "a.json")[0] == 0
    assert json.loads((tmp_path / "a.json").read_text())["workload"] == "prefix"
    made = optimize_mechanism(MechanismRequest("blt", MinSep(60, 12, 4)))
    assert read_strategy(tmp_path / "a.json") == made
    _, out, _ = fedray_command("mechanism", "a.json", "tree", *SETTING)
    assert "made for" not in out
    given = (*SETTING, "--workload", "momentum=0.9", "--out", "b.json")
    assert fedray_command("optimize", "blt", *given)[0] == 0
    _, out, _ = fedray_command("mechanism", "a.json", "b.json", *SETTING)
    rows = {
        line[2]: line[3:].split("  ") for line in out.splitlines() if line[:4] in ("  a ", "  b ")
    }
    made_for = {name: next(filter(None, cells)).strip() for name, cells in rows.items()}
    assert made_for == {"a": "RmsLoss", "b": "RmsLoss of momentum=0.9"}
    alone = " ".join(fedray_command("mechanism", "b.json", *SETTING)[1].split())
    assert "made for RmsLoss of momentum=0.9, another than here" in alone
    stressed = (
        "--rounds",
        "16",
        "--estimated",
        "4",
        "--actual",
        "4",
        "--mechanisms",
        "a.json,b.json",
    )
    rows = json.loads(fedray_command("stress", *stressed, "--json")[1])["rows"]
    assert [row.get("made_for") for row in rows] == [None, "RmsLoss of momentum=0.9"]
    (tmp_path / "b.json").write_text('{"kind": "tree", "workload": 3}')
    code, _, err = fedray_command("mechanism", "b.json", *SETTING)
    assert code == 2
    assert "workload=3 of a mechanism file must be text" in err


def test_a_file_records_its_loss_and_one_for_the_other_loss_is_marked(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    """In the verdict, the table, the facts of one mechanism and stress tests; also named ones."""
    monkeypatch.chdir(tmp_path)
    for loss in ("rms", "max"):
        options = ("--buffers", "2", "--loss", loss, "--out", f"{loss}.json")
        code, out, _ = fedray_command("optimize", "blt", *SETTING, *options)
        assert code == 0
        name = {"rms": "RmsLoss", "max": "MaxLoss"}[loss]
        assert re.search(rf"made for +{name}\n", out), "not marked"
        assert json.loads((tmp_path / f"{loss}.json").read_text())["loss"] == loss
    given = ("rms.json", "max.json", "blt-400", "bisr", "tree")
    for loss, own, other in (("rms", "RmsLoss", "MaxLoss"), ("max", "MaxLoss", "RmsLoss")):
        found = json.loads(
            fedray_command("mechanism", *given, *SETTING, "--loss", loss, "--json")[1]
        )
        made_for = {name: each.get("made_for") for name, each in found["mechanisms"].items()}
        named = ("RmsLoss", "MaxLoss", "MaxLoss", own, None)
        assert made_for == dict(zip(given, named, strict=True))
        values = {name: each[f"{loss}_loss"] for name, each in found["mechanisms"].items()}
        best = min(values, key=values.__getitem__)
        assert best == f"{loss}.json"
        shown = {name: Path(name).stem for name in given}
        out = fedray_command("mechanism", *given, *SETTING, "--loss", loss)[1]
        said = " ".join(out.split())
        assert said.startswith(f"Least error at equal privacy: {shown[best]} ({own} ")
        marked = [name for name, each in made_for.items() if each == other]
        for name in marked:
            share = 100 * (values[name] / values[best] - 1)
            assert f"{shown[name]} +{share:.1f} % (made for {other})" in said
        assert said.count("(made for") == len(marked)
        alone = fedray_command("mechanism", marked[0], *SETTING, "--loss", loss)[1]
        assert re.search(rf"made for +{other}, another than here", alone)
    stressed = ("--rounds", "60", "--estimated", "12", "--actual", "12", "--mechanisms")
    for loss, other in (("rms", "MaxLoss"), ("max", None)):
        command = ("stress", *stressed, "blt-400,max.json,tree", "--loss", loss)
        rows = json.loads(fedray_command(*command, "--json")[1])["rows"]
        assert [row.get("made_for") for row in rows] == [other, other, None]
        assert {row["loss"] for row in rows} == {loss}
        said = " ".join(fedray_command(*command)[1].split())
        assert said.count(" was made for MaxLoss.") == (2 if other else 0)
    for command in (("optimize", "blt"), ("mechanism", "tree")):
        code, _, err = fedray_command(*command, *SETTING, "--loss", "mean")
        assert code == 2
        assert "--loss='mean' must be max or rms" in err
    (tmp_path / "rms.json").write_text('{"kind": "tree", "loss": "mean"}')
    code, _, err = fedray_command("mechanism", "rms.json", *SETTING)
    assert code == 2
    assert "'mean' of a mechanism file must be max or rms" in err


def test_a_decay_at_the_bound_of_the_search_is_named(fedray_command) -> None:
    for name, is_named in (("blt-1000", True), ("blt-400", False)):
        _, out, _ = fedray_command("mechanism", name, *SETTING)
        assert ("The largest theta is the bound of the search" in out) == is_named
        found = json.loads(fedray_command("mechanism", name, *SETTING, "--json")[1])
        assert found.get("theta_is_at_bound") == (True if is_named else None)


def test_coefficients_are_those_of_c_over_all_rounds(fedray_command, tmp_path: Path) -> None:
    write_strategy(Banded.from_matrix(np.tri(60) - np.tri(60, k=-3), "m"), tmp_path / "m.json")
    file, matrix = tmp_path / "c.csv", tmp_path / "C.npy"
    given = ("blt-400", "bisr", "identity")
    code, out, _ = fedray_command("mechanism", *given, *SETTING, "--coefficients", str(file))
    assert code == 0
    assert f"coefficients {file}" in out
    with file.open() as rows:
        heading, *lines = csv.reader(rows)
    assert heading == ["rounds later", *given]
    columns = np.array(lines, float).T
    np.testing.assert_array_equal(columns[0], np.arange(60))
    bisr = optimize_mechanism(MechanismRequest("bisr", MinSep(60, 12, 4)))
    for strategy, column in zip(
        (read_strategy("blt-400"), bisr, Identity()), columns[1:], strict=True
    ):
        np.testing.assert_allclose(column, strategy.definition(60)[:, 0], rtol=1e-12)
    for name, strategy in (("tree", Tree()), (str(tmp_path / "m.json"), None), ("blt-400", None)):
        code, _, _ = fedray_command("mechanism", name, *SETTING, "--coefficients", str(matrix))
        assert code == 0
        expected = (strategy or read_strategy(name)).definition(60)
        np.testing.assert_allclose(np.load(matrix), expected, rtol=1e-12)
    for names, path, says in (
        (("tree",), file, "C of tree is not Toeplitz; give a .npy file for its matrix"),
        (("tree", "identity"), matrix, "has room for one matrix; name one mechanism"),
        (("tree",), tmp_path / "c.txt", "must end in .csv or .npy"),
    ):
        code, _, err = fedray_command("mechanism", *names, *SETTING, "--coefficients", str(path))
        assert code == 2
        assert err.count("\n") == 1
        assert says in err


def test_figures_and_optima_of_a_workload(fedray_command, tmp_path: Path) -> None:
    """Optimised for momentum, it beats the optimum for prefix sums at momentum, and only there."""
    momentum = ("--workload", "momentum=0.9")
    errors = {}
    prefix = ("--workload", "prefix")
    for name, workload in (("usual.json", prefix), ("own.json", momentum)):
        out = str(tmp_path / name)
        options = ("--bands", "6", *workload, "--out", out, "--json")
        code, text, _ = fedray_command("optimize", "banded-toeplitz", *SETTING, *options)
        assert code == 0
        assert json.loads(text).get("workload", "prefix") == workload[1]
        for measured in ((), momentum):
            text = fedray_command("mechanism", out, *SETTING, *measured, "--json")[1]
            errors[name, measured] = json.loads(text)["rms_loss"]
    assert errors["own.json", momentum] < errors["usual.json", momentum]
    assert errors["usual.json", ()] < errors["own.json", ()]


def test_a_schedule_is_that_of_a_scenario_file(fedray_command, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    server = '[training.server.schedule]\nshape = "cosine"\n'
    rounds = "[population]\ndevices = 1000\n[rounds]\ncount = 60\nreport_goal = 100\n"
    file.write_text(rounds + server)
    options = ("--workload", f"schedule={file}", "--json")
    code, text, _ = fedray_command("mechanism", "tree", *SETTING, *options)
    assert code == 0
    schedule = Scenario.from_toml(file).training.server.schedule
    workload = Workload(rates=tuple(schedule.factor(index, 60) for index in range(60)))
    expected = mechanism_figures(Tree(), MinSep(60, 12, 4), None, 1e-10, workload=workload)
    assert json.loads(text)["rms_loss"] == expected.loss.rms_loss
    code, _, err = fedray_command("mechanism", "tree", *SETTING, "--workload", "schedule")
    assert code == 2
    assert "--workload='schedule' needs the rates of a scenario" in err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("blt", "'blt' is a kind that is optimised .* `fedray optimize blt`, and give the file"),
        (
            "tre",
            "'tre' is neither a file nor one of the kinds .* tree-full.*; the nearest is 'tree'",
        ),
        ("toeplitz", "'toeplitz' has no recipe, .* a kind such as 'banded-toeplitz'"),
        ("none.json", "'none.json' cannot be read"),
    ],
)
def test_what_names_no_mechanism_is_told(fedray_command, given: str, says: str) -> None:
    code, _, err = fedray_command("mechanism", "tree", given, *SETTING)
    assert code == 2
    assert re.search(says, err)


def test_of_several_mechanisms_the_one_that_is_refused_is_named(
    fedray_command, tmp_path: Path
) -> None:
    write_strategy(Toeplitz(coefficients=(1.0, 0.5)), tmp_path / "short.json")
    sampled = ("--noise-multiplier", "1", "--sampling", "0.1")
    given = ("identity", str(tmp_path / "short.json"))
    code, _, err = fedray_command("mechanism", *given, *SETTING, *sampled)
    assert code == 2
    assert "short.json': this toeplitz mechanism has 2 bands" in err


RANDOM = (*SETTING[:-1], "5", "--random-rounds")
SAMPLED = (*RANDOM, "--noise-multiplier", "2", "--sampling")


@pytest.mark.slow
def test_epsilon_of_random_rounds_is_that_of_the_accountant(fedray_command, tmp_path: Path) -> None:
    write_strategy(Toeplitz(coefficients=(1.0, 0.5)), tmp_path / "short.json")
    command = ("mechanism", str(tmp_path / "short.json"), *SAMPLED, "0.2", "--json")
    found = json.loads(fedray_command(*command)[1])
    event = MinSepSampled(
        strategy=Toeplitz(coefficients=(1.0, 0.5)),
        rounds=60,
        min_sep=12,
        probability=0.2,
        noise_multiplier=2.0,
    )
    assert found["hypothetical"]["epsilon"] == monte_carlo_epsilon(event, 1e-10)
    assert found["hypothetical"]["epsilon"] < found["epsilon"]
    assert found["hypothetical"]["renyi_epsilon"] is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((*SAMPLED[:-1],), "--random-rounds.*give the sampling probability"),
        ((*SAMPLED, "1.5"), "probability=1.5 must be above 0 and at most 1"),
        ((*RANDOM, "--epsilon", "2", "--sampling", "1"), "cannot be met with"),
        ((*SAMPLED, "0.5"), "band-fhu strategy of 30 bands with min_sep=12"),
        ((*SAMPLED, "0.5", "--max-participations", "4"), "--max-participations=4 .*give 5"),
    ],
)
def test_random_rounds_are_refused_without_a_theorem(
    fedray_command, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    write_strategy(BandFHU(bands=30), tmp_path / "long.json")
    code, _, err = fedray_command("mechanism", str(tmp_path / "long.json"), *options)
    assert code == 2
    assert re.search(says, err)


@pytest.mark.slow
def test_a_bound_is_called_one(fedray_command, tmp_path: Path) -> None:
    """400 bands guessed, 385 seen: nothing exact is known of the schema, and the table and the JSON say so."""
    fedray_command("optimize", "banded", *SETTING, "--out", str(tmp_path / "b.json"))
    other = ["--rounds", "60", "--min-sep", "11", "--max-participations", "4"]
    code, out, _ = fedray_command("mechanism", str(tmp_path / "b.json"), *other)
    assert code == 0
    assert "(upper bound; at least " in out
    document = json.loads(
        fedray_command("mechanism", str(tmp_path / "b.json"), *other, "--json")[1]
    )
    assert not document["sensitivity_is_exact"]
    assert document["sensitivity_lower_bound"] <= document["sensitivity"]


@pytest.mark.slow
def test_what_was_found_once_is_found_again(fedray_command, tmp_path: Path) -> None:
    first = json.loads(fedray_command("optimize", "banded-toeplitz", *SETTING, "--json")[1])
    assert len(list((tmp_path / "cache" / "fedray" / "designs").glob("*.json"))) == 1
    second = json.loads(fedray_command("optimize", "banded-toeplitz", *SETTING, "--json")[1])
    shutil.rmtree(tmp_path / "cache")
    third = json.loads(fedray_command("optimize", "banded-toeplitz", *SETTING, "--json")[1])
    assert first["parameters"] == second["parameters"] == third["parameters"]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["forest", *SETTING], "kind='forest' is unknown"),
        (["blt"], "--rounds must be given"),
        (["blt", "--rounds", "60", "--min-sep", "12"], "--max-participations must be given"),
        (
            ["blt", "--rounds", "60", "--min-sep", "0", "--max-participations", "1"],
            "--min-sep=0 must be at least 1",
        ),
        (
            ["blt", "--rounds", "60", "--min-sep", "12", "--max-participations", "6"],
            "is more than ceil(rounds / min_sep) = 5",
        ),
        (
            ["blt", "--rounds", "x", "--min-sep", "12", "--max-participations", "6"],
            "--rounds='x' must be a whole number",
        ),
        (["blt", *SETTING, "--buffers", "0"], "buffers=0 must be from 1 to 10"),
        (["banded", *SETTING, "--bands", "61"], "--bands=61 must be from 1 to `--rounds=60`"),
        (["tree", *SETTING, "--bands", "3"], "--bands=3 does not apply to tree"),
        (
            ["identity", *SETTING, "--out", "/nowhere/m.json"],
            "name a file in a directory that exists",
        ),
        (["identity", *SETTING, "--out", "m.npy"], "choose another suffix"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_get_one_line_and_two(fedray_command, arguments: list[str], rule: str) -> None:
    code, out, err = fedray_command("optimize", *arguments)
    assert code == 2
    assert out == ""
    assert rule in err
    assert "after validation" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (None, "cannot be read"),
        ("{", "is not valid JSON"),
        ("[]", "input should be a valid dictionary"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"kind": "blt"}', "theta is missing; add it"),
        (
            '{"kind": "blt", "theta": [1.5], "omega": [0.1]}',
            "theta.0 = 1.5: input should be less than 1",
        ),
        ('{"kind": "blt", "theta": [0.5, 0.5], "omega": [0.1, 0.1]}', "must be distinct"),
        (
            '{"kind": "blt", "theta": [NaN], "omega": [0.1]}',
            "theta.0 = nan: input should be a finite number",
        ),
        ('{"kind": "oak"}', "kind = 'oak' is not one of identity,"),
        ('{"kind": "tree", "height": 3}', "unknown key height = 3"),
        ('{"kind": "matrix", "file": "gone.npy"}', "gone.npy' cannot be read"),
        ('{"kind": "matrix", "file": "full.npy"}', "C must be lower triangular"),
        (
            '{"kind": "banded", "file": "small.npy"}',
            "rounds=60 is more than this banded strategy has (3)",
        ),
    ],
    ids=str,
)
def test_mechanism_files_that_make_none_get_one_line_and_two(
    fedray_command, content, rule: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "full.npy", np.ones((3, 3)))
    np.save(tmp_path / "small.npy", np.eye(3))
    if content is not None:
        (tmp_path / "m.json").write_text(content)
    code, out, err = fedray_command("mechanism", str(tmp_path / "m.json"), *SETTING)
    assert code == 2
    assert out == ""
    assert rule in err
    assert "after validation" not in err
    assert err.count("\n") == 1


def matrix_scenario(directory: Path, small, rounds: int = 12) -> Scenario:
    """The small scenario with a banded mechanism, by its TOML file."""
    lags = np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds)))
    write_strategy(
        Banded.from_matrix(lower_factor(np.where(lags < 3, 0.5**lags, 0.0) + np.eye(rounds)), "x"),
        directory / "C.json",
    )
    text = small().to_toml()
    before, _, _ = text.partition("[privacy.mechanism]")
    (directory / "s.toml").write_text(
        f'{before}[privacy.mechanism]\nkind = "banded"\nfile = "{next(directory.glob("C-*.npy")).name}"\n'
    )
    return Scenario.from_toml(directory / "s.toml")


def test_a_run_with_a_matrix_is_audited_from_its_trace_alone(small, tmp_path: Path) -> None:
    """The matrix travels with the trace; where it came from is no part of the scenario's identity."""
    scenario = matrix_scenario(tmp_path, small)
    (tmp_path / "other").mkdir()
    assert matrix_scenario(tmp_path / "other", small).digest == scenario.digest
    assert scenario.with_overrides("seed=8").privacy.mechanism == scenario.privacy.mechanism
    trace = simulate(scenario, Placement(1, "in-process"), tmp_path / "t")
    strategy = read_strategy(tmp_path / "C.json")
    next(tmp_path.glob("C-*.npy")).unlink()
    audit = audit_trace(tmp_path / "t")
    assert audit.scenario.privacy.mechanism == strategy
    used = audit.mechanisms[0]
    assert used.name == "banded"
    assert used.trace.is_exact
    assert used.trace.value == pytest.approx(
        reference.pattern_sensitivity(strategy, used.trace.rounds, 12), rel=1e-12
    )
    assert trace.path == audit.path


def test_an_override_that_names_another_matrix_takes_it(small, tmp_path: Path) -> None:
    scenario = matrix_scenario(tmp_path, small)
    np.save(tmp_path / "other.npy", 2 * np.eye(12))
    changed = scenario.with_overrides(f"privacy.mechanism.file={tmp_path / 'other.npy'}")
    assert isinstance(changed.privacy.mechanism, Banded)
    assert changed.privacy.mechanism.matrix[0, 0] == 2.0
    assert changed.digest != scenario.digest


def test_toeplitz_noise_that_grows_without_end_is_refused(small) -> None:
    tables = small().to_tables()
    tables["privacy"]["mechanism"] = {"kind": "toeplitz", "coefficients": [1.0, 9.0]}
    with pytest.raises(ScenarioError, match="whose inverse is stable"):
        Scenario.from_tables(tables)


def test_matrices_that_do_not_fit_a_scenario_are_refused(small, tmp_path: Path) -> None:
    matrix_scenario(tmp_path, small)
    with pytest.raises(ScenarioError, match="was made for only 12 rounds"):
        Scenario.from_toml(tmp_path / "s.toml", ["rounds.count=13"])
    np.save(next(tmp_path.glob("C-*.npy")), np.full((12, 12), np.nan))
    with pytest.raises(ScenarioError, match="every number must be finite"):
        Scenario.from_toml(tmp_path / "s.toml")


def test_the_json_beside_a_matrix_names_it_by_content(tmp_path: Path) -> None:
    write_strategy(Matrix.from_matrix(np.eye(3), "x.npy"), tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    assert document["file"] == f"m-{document['sha256'][:16]}.npy"
    assert len(document["sha256"]) == 64
    write_strategy(Matrix.from_matrix(2 * np.eye(3), "x.npy"), tmp_path / "m.other")
    assert read_strategy(tmp_path / "m.json") != read_strategy(tmp_path / "m.other")
    np.save(tmp_path / document["file"], 2 * np.eye(3))
    with pytest.raises(ValueError, match="holds a different matrix"):
        read_strategy(tmp_path / "m.json")


@pytest.mark.parametrize("multiplier", ["0.03007519", "0.0300752", "0.03008"])
def test_an_epsilon_near_709_is_a_number(fedray_command, tmp_path: Path, multiplier: str) -> None:
    """Sensitivity 1, mu near 33.25, delta 1e-6: it was infinite, and JSON ended in a traceback."""
    (tmp_path / "i.json").write_text('{"kind": "identity"}')
    setting = ["--rounds", "9", "--min-sep", "9", "--max-participations", "1", "--delta", "1e-6"]
    code, out, _ = fedray_command(
        "mechanism", str(tmp_path / "i.json"), *setting, "--noise-multiplier", multiplier, "--json"
    )
    assert code == 0
    assert 709 < json.loads(out)["epsilon"] < 711


@pytest.mark.slow
def test_random_rounds_say_that_their_bound_is_drawn(fedray_command, tmp_path: Path) -> None:
    """In the facts of one mechanism, the table of several, and JSON."""
    write_strategy(Toeplitz(coefficients=(1.0, 0.5)), tmp_path / "short.json")
    command = ("mechanism", "identity", *SAMPLED, "0.2")
    several = ("mechanism", str(tmp_path / "short.json"), *command[1:])
    for given in (command, several, (*command, "--json")):
        code, out, _ = fedray_command(*given)
        assert code == 0
        said = " ".join(out.split())
        assert "Monte Carlo" in said
        assert "1e-06" in said  # the probability that it is too small
