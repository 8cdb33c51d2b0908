"""The command: what it prints, its exit codes, and one line for every mistake."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fedray.base.errors import InputError
from fedray.cli import GROUPS, REPRODUCE, app
from fedray.commands.frame.output import IS_QUIET

SMALL_RUN = [
    "--set",
    "population.devices=20000",
    "--set",
    "rounds.report_goal=200",
    "--set",
    "rounds.count=6",
]
HERE = ["--place", "backend=in-process"]


@pytest.fixture(scope="module")
def trace(small, tmp_path_factory) -> Path:
    from fedray.runs.simulation import simulate
    from fedray.runtime.placement import Placement

    return simulate(
        small(), Placement(1, "in-process"), tmp_path_factory.mktemp("cli") / "trace"
    ).path


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_run_prints_one_json_object_and_writes_trace_and_report(
    fedray_command, small, tmp_path: Path
) -> None:
    (tmp_path / "s.toml").write_text(
        small(
            "training.enabled=true",
            "training.cohort_sample=16",
            "rounds.count=4",
            "training.evaluate_every=2",
        ).to_toml()
    )
    workers = ["--place", "shards=1", "--place", "trainers=1"]
    code, out, _ = fedray_command(
        "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "t"), *workers, "--json"
    )
    assert code == 0
    document = json.loads(out)
    assert document["rounds"] == 4
    assert document["participations"] == 800
    assert Path(document["report"]).stat().st_size > 100_000
    assert (tmp_path / "t" / "training" / "metrics.parquet").exists()
    code, again, _ = fedray_command("audit", str(tmp_path / "t"), "--json", "--verify")
    assert code == 0
    audited = json.loads(again)
    assert audited.pop("digest_verified")
    assert "recorded digests" in audited.pop("integrity")
    assert {key: document[key] for key in audited} == audited


def test_run_prints_tables_and_paths_for_people(fedray_command, small, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(small().to_toml())
    code, out, _ = fedray_command(
        "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "t"), *HERE
    )
    assert code == 0
    assert all(
        word in out
        for word in (
            "may be published (enforced).",
            "min-sep",
            "observed",
            "enforced",
            "delta 1e-10",
            "publishable",
            "report.html",
        )
    )


@pytest.mark.slow
def test_one_command_starts_a_run_and_opens_it_once_it_is_complete(
    fedray_command, small, tmp_path: Path
) -> None:
    """What a job repeats until it exits with 0."""
    (tmp_path / "s.toml").write_text(small().to_toml())
    command = ["run", str(tmp_path / "s.toml"), "--resume", str(tmp_path / "t"), "--json"]
    assert (
        fedray_command("budget", str(tmp_path / "l"), "--epsilon", "30", "--delta", "1e-6")[0] == 0
    )
    command += ["--ledger", str(tmp_path / "l"), "--place", "backend=in-process"]
    code, first, err = fedray_command(*command)
    assert code == 0, err
    written = (tmp_path / "t" / "run.json").stat().st_mtime_ns
    code, again, err = fedray_command(*command)
    assert code == 0, err
    assert json.loads(again)["digest"] == json.loads(first)["digest"]
    assert (tmp_path / "t" / "run.json").stat().st_mtime_ns == written
    # It is charged once.
    _, charged, _ = fedray_command("budget", str(tmp_path / "l"), "--json")
    assert charged.count('"charged"') == 1
    code, _, err = fedray_command(*command, "--set", "seed=5")
    assert code == 2
    assert "is a complete run of another scenario" in err


@pytest.mark.slow
def test_a_run_says_at_its_start_how_to_continue_it_if_its_process_vanishes(
    fedray_command, small, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(small().to_toml())
    code, _, err = fedray_command("run", "s.toml", "--place", "backend=in-process")
    assert code == 0
    [run] = Path("runs").iterdir()
    line = "resume  if this run is cut off: fedray {}"
    assert line.format(f"run --resume {run}") in err.splitlines()
    given = ["--set=training.cohort_sample=2"]
    code, _, err = fedray_command(
        "train", str(run), *given, "--out", "m", "--place", "backend=in-process"
    )
    assert code == 0, err
    assert line.format("train --resume m") in err.splitlines()


def test_a_run_that_is_refused_or_quiet_does_not_say_how_to_continue_it(
    fedray_command, small, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(small().to_toml())
    monkeypatch.setattr("fedray.runs.simulation.check_memory", _refused)
    code, _, err = fedray_command("run", "s.toml", "--place", "backend=in-process")
    assert (code, err.count("\n")) == (2, 1)
    assert not Path("runs").exists()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    given = ["run", "s.toml", "--place", "backend=in-process"]
    for quiet in (["--quiet", *given], [*given, "--quiet"], ["run", "--quiet", *given[1:]]):
        code, _, err = fedray_command(*quiet)
        assert (code, err) == (0, "")
    # It holds for one command only.
    assert "resume" in fedray_command(*given)[2]


def _refused(*arguments: object) -> None:
    raise InputError("no memory")


def test_a_starved_run_exits_with_1_and_keeps_its_trace(
    fedray_command, small, tmp_path: Path
) -> None:
    starving = small(
        "population.devices=2000",
        "participation.timer_hours=2000.0",
        # Without them it would be certain before the run that the rounds cannot be committed.
        "participation.timer_violators=1e-6",
        "rounds.count=500",
        "rounds.max_days=2.0",
    )
    (tmp_path / "s.toml").write_text(starving.to_toml())
    code, out, err = fedray_command(
        "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "t"), "--json", *HERE
    )
    assert code == 1
    assert json.loads(out)["ended"].startswith("starved")
    assert "ran out with" in err


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("run quickstart", "--set seed=2"),
        ("run quickstart", "--place backend=in-process --quiet"),
        # A value that is the name of a command is a value.
        ("run quickstart", "--out run --json"),
        ("train a-trace", "--tensorboard=events"),
        ("compare one two", "--figures plan --style paper,pdf"),
        ("audit a-trace", "--no-verify --delta 1e-6"),
        ("import log.csv", "--column device=d --column round=r --rounds 40"),
        ("budget ledger", "--epsilon 2"),
        ("mechanism tree blt-100", "--rounds 60 --min-sep 20 --fixed-order"),
        ("optimize blt", "--max-participations 3 --quiet"),
        ("stress quickstart", "--seeds 3 --what-if population.devices=10"),
        ("plan quickstart", "--epsilon 4"),
        ("sweep timer", "--table rows.csv --columns a,b"),
        ("population quickstart", "--devices 10"),
        ("schema placement", "--json"),
        ("init", "--list"),
        ("reproduce gboard-privacy", "--rows en-GB --json"),
    ],
)
def test_options_stand_before_or_behind_the_command(
    fedray_command, monkeypatch, command: str, options: str
) -> None:
    called: list[tuple[object, dict[str, object], bool]] = []

    def noted(function: Any, given: dict[str, Any]) -> None:
        is_quiet = given.pop("quiet") or IS_QUIET.get()
        called.append((function.__name__, given, is_quiet))

    monkeypatch.setattr("fedray.commands.frame.declaring.run_command", noted)
    name, *words = command.split()
    given = options.split()
    for order in ([*given, name, *words], [name, *given, *words], [name, *words, *given]):
        code, out, err = fedray_command(*order)
        assert (code, out, err) == (0, "", ""), order
    assert len(called) == 3
    assert all(each == called[0] for each in called), called
    assert called[0][2] == ("--quiet" in given)


def test_options_of_a_reproduction_stand_before_it_and_before_the_group(
    fedray_command, monkeypatch
) -> None:
    called: list[tuple[str, str]] = []

    def noted(reproduction: Any, given: dict[str, Any]) -> None:
        called.append((reproduction.name, given["optimizers"]))

    monkeypatch.setattr("fedray.commands.reproduce.reproduce", noted)
    for order in (
        ("--optimizers", "sgd", "reproduce", "shakespeare"),
        ("reproduce", "--optimizers", "sgd", "shakespeare"),
        ("--optimizers=sgd", "--", "reproduce", "shakespeare"),
    ):
        assert fedray_command(*order) == (0, "", ""), order
    assert called == [("shakespeare", "sgd")] * 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--timer-hours 12 run small", "No such option: --timer-hours; a scenario's key is given"),
        ("--timer-hours=12 run small", "No such option: --timer-hours; a scenario's key is given"),
        ("--timer-hours 12 --quiet run small", "No such option: --timer-hours; a scenario's"),
        ("--bogus run missing.toml", "No such option: --bogus"),
        ("--bogus dance", "No such command 'dance'"),
        # What stands behind "--" are words.
        ("-- run missing.toml", "'missing.toml' does not exist"),
        ("--set seed=2 -- run missing.toml", "'missing.toml' does not exist"),
        ("-- --set seed=2 run missing.toml", "No such command '--set'"),
    ],
)
def test_the_value_of_an_unknown_option_is_not_taken_for_the_command(
    fedray_command, arguments: str, expected: str
) -> None:
    code, out, err = fedray_command(*arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_every_option_has_a_value_in_all_commands_or_in_none() -> None:
    """Otherwise nobody could say where the name of the command begins."""
    group = typer.main.get_command(app)
    kinds: dict[str, set[bool]] = {}
    for command in vars(group)["commands"].values():
        for each in command.params:
            for flag in each.opts if each.param_type_name == "option" else ():
                kinds.setdefault(flag, set()).add(each.is_flag)
    assert len(kinds) > 60
    assert [flag for flag, found in kinds.items() if len(found) > 1] == []


def test_audit_takes_another_multiplier(fedray_command, trace: Path) -> None:
    code, out, _ = fedray_command(
        "audit", str(trace), "--noise-multiplier", "3.5", "--delta", "1e-6", "--json"
    )
    assert code == 0
    used = json.loads(out)["mechanisms"][0]
    assert (used["noise_multiplier"], used["guarantees"][0]["delta"]) == (3.5, 1e-6)


def test_report_writes_where_it_is_told(fedray_command, trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = fedray_command("report", str(trace), "--out", str(page), "--title", r"<A> & \1")
    assert code == 0
    assert out.strip() == str(page)
    assert page.read_text().startswith("<!doctype html>")
    for element in ("title", "h1"):
        assert rf"<{element}>&lt;A&gt; &amp; \1</{element}>" in page.read_text()
    code, _, err = fedray_command("audit", str(trace), "--title", "A")
    assert (code, "--title='A' names a page; give --page FILE" in err) == (2, True), err


def test_schema_and_scenarios(fedray_command) -> None:
    code, out, _ = fedray_command("schema")
    assert code == 0
    assert json.loads(out)["title"] == "Scenario"
    code, out, _ = fedray_command("init", "--list")
    assert code == 0
    assert "quickstart.toml" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "missing.toml"], "does not exist; name a file, or a scenario that ships"),
        (
            ["run", "quikstart"],
            "is neither a file nor a shipped scenario; choose from quickstart, ",
        ),
        (["sweep", "timers"], "is no file and none of timer, "),
        (["run", "BAD.toml"], "is not valid TOML"),
        (["run", "GOOD.toml", "--set", "rounds.goal=1"], "unknown key rounds.goal"),
        (
            ["run", "GOOD.toml", "--set", "rounds.report_goal=999999"],
            "must not exceed population.devices",
        ),
        (
            ["run", "GOOD.toml", "--set", "privacy.noise_multiplier=nan"],
            "privacy.noise_multiplier = nan",
        ),
        (["run", "GOOD.toml", "--set", "privacy.clip_norm=-1"], "privacy.clip_norm = -1"),
        (["run", "GOOD.toml", "--place", "shards=0"], "--place shards=0 must be at least 1"),
        (["run", "GOOD.toml", "--out", "FULL"], "exists already"),
        (
            ["run", "GOOD.toml", "--set", "training.enabled=true", "--set", "training.task=chess"],
            "is not one of next_word",
        ),
        (["audit", "missing"], "is not a directory"),
        (["audit", "FULL"], "has no run.json"),
        (["audit", "TRACE", "--noise-multiplier", "0"], "--noise-multiplier=0.0 must be from 0.01"),
        (["audit", "TRACE", "--delta", "2"], "delta=2.0 must be from 1e-30 to below 1"),
        (["audit", "TRACE", "--delta", "tiny"], "--delta"),
        (["report", "TRACE", "--out", "missing/page.html"], "cannot be written"),
        (
            [
                *("run", "GOOD.toml", "--set", "population.devices=1000000000000"),
                *("--set", "rounds.report_goal=100000000000"),
            ],
            "GiB of memory, this machine has",
        ),
        (["run", "GOOD.toml", "--out", "."], "exists already"),
        (["run", "GOOD.toml", "--out", "x" * 300], "cannot be made"),
        (
            ["run", "GOOD.toml", "--place", "address=127.0.0.1:1", "--out", "new/t"],
            # It cannot be joined, or another test's cluster is joined already.
            "address='127.0.0.1:1' ",
        ),
        (["report", "TRACE", "--out", "."], "(Is a directory); name a file in it"),
        (["dance"], "No such command"),
        (["run"], "SCENARIO is missing"),
        (["run", "--resume", "nowhere"], "has no unfinished run next to it"),
        (["run", "--resume", "nowhere", "--out", "x"], "leave out --out"),
        (
            ["run", "--resume", "nowhere", "--set", "seed=1"],
            "leave out --out, and --set unless SCENARIO is given",
        ),
        (
            ["run", "GOOD.toml", "--place", "checkpoint_seconds=-1"],
            "--place checkpoint_seconds=-1.0 must not be negative",
        ),
        (
            ["run", "GOOD.toml", "--set", "availability.model=nope"],
            "is not one of habit, conditions, always_on, poisson, replay, custom",
        ),
        (
            ["run", "GOOD.toml", "--set", "availability={model='poisson',sesions_per_day=1}"],
            "did you mean 'sessions_per_day'",
        ),
        (
            ["run", "GOOD.toml", "--set", "availability={model='replay',file='nope.csv'}"],
            "nope.csv' (No such file or directory); put a readable file there",
        ),
        (
            ["run", "GOOD.toml", "--set", "availability={model='custom',file='BAD.toml'}"],
            "is not a readable Python file",
        ),
        (
            [
                "run",
                "GOOD.toml",
                "--set",
                "rounds.outages=[{start_hours=1,hours=5},{start_hours=2,hours=1}]",
            ],
            "outages",
        ),
        (
            ["reproduce", "chess"],
            "unknown reproduction 'chess'; choose from amplified, amplified-errors, blt",
        ),
        (["reproduce", "gboard", "--rows", "xx-XX"], "is not a published run"),
        (["reproduce", "gboard", "--rows", ","], "the list is empty"),
        (["reproduce", "gboard", "--out", "FULL"], "exists already"),
        (["reproduce", "gboard-predict", "--figures", "f"], "No such option: --figures"),
        (["run", "GOOD.toml", "--place", "shard=2"], "must be KEY=VALUE; keys are shards, "),
        (["run", "GOOD.toml", "--place", "shards"], "must be KEY=VALUE"),
        (["run", "GOOD.toml", "--place", "shards=1.000"], "shards=1.000 must be a whole number"),
        (["run", "GOOD.toml", "--shards", "2"], "it is given by --place shards=VALUE"),
        (["run", "GOOD.toml", "--in-process"], "it is given by --place backend=in-process"),
        (["--in-process", "run", "GOOD.toml"], "it is given by --place backend=in-process"),
        (["--shards", "run", "GOOD.toml"], "it is given by --place shards=VALUE"),
        (["--out"], "No such option: --out"),
        (["fit-min-sep", "--min-sep", "20"], "population.devices must be set"),
        (["fit-min-sep", "GOOD.toml"], "min_sep must be given unless"),
        (["fit-min-sep", "GOOD.toml", "--min-sep", "0"], "min_sep = 0: input should be"),
        (
            ["fit-min-sep", "GOOD.toml", "--min-sep", "12"],
            "2 rounds of a device, 12 apart, do not fit into 12 rounds",
        ),
        (
            ["fit-min-sep", "GOOD.toml", "--min-sep", "5", "--vary", "checkins"],
            "is not one of reach, pace, both",
        ),
        (["fit-min-sep", "GOOD.toml", "--runs", "NONE.csv"], "cannot be read (No such file"),
        (
            ["fit-min-sep", "GOOD.toml", "--runs", "NONE.csv", "--min-sep", "5"],
            "--min-sep is a column of --runs; leave it out",
        ),
        (
            ["fit-min-sep", "GOOD.toml", "--runs", "NONE.csv", "--set", "rounds.count=9"],
            "--runs has this as rounds; leave it out",
        ),
        (
            ["fit-min-sep", "GOOD.toml", "--min-sep", "5", "--scale", "0.01"],
            "leaves a report goal of 2",
        ),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(
    fedray_command, small, trace: Path, tmp_path: Path, monkeypatch, arguments, expected
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "GOOD.toml").write_text(small().to_toml())
    (tmp_path / "BAD.toml").write_text("seed = = 1\n")
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "mine.txt").write_text("keep")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = fedray_command(
        *[str(trace) if word == "TRACE" else word for word in arguments]
    )
    assert code == 2
    assert out == ""
    assert err.startswith("fedray: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert expected in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["audit", "report"])
@pytest.mark.parametrize(
    ("damage", "expected"),
    [("truncated", "is truncated"), ("version", "schema_version=99, this release reads 6")],
)
def test_damaged_traces_get_one_line_and_exit_code_2(
    fedray_command, trace: Path, tmp_path: Path, command: str, damage: str, expected: str
) -> None:
    copy = Path(shutil.copytree(trace, tmp_path / "copy"))
    if damage == "truncated":
        part = next((copy / "participations").iterdir())
        part.write_bytes(part.read_bytes()[:-100])
    else:
        run_file = copy / "run.json"
        run_file.write_text(
            run_file.read_text().replace('"schema_version": 6', '"schema_version": 99')
        )
    before = sorted(copy.rglob("*"))
    code, out, err = fedray_command(command, str(copy))
    assert (code, out) == (2, "")
    assert err.startswith("fedray: ")
    assert err.count("\n") == 1
    assert expected in err
    assert sorted(copy.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["audit", "--help"], ["init", "--list"]])
def test_light_commands_load_no_heavy_library(arguments: list[str]) -> None:
    heavy = ["ray", "torch", "jax", "dp_accounting", "matplotlib", "numba"]
    if "--help" in arguments:
        heavy += ["numpy", "rich"]
    assert_not_loaded(heavy, arguments)


def test_options_that_belong_together_are_listed_under_their_heading(fedray_command) -> None:
    _, text, _ = fedray_command("import", "--help")
    headings = [line for line in text.splitlines() if re.fullmatch(r"[A-Z].*:", line)]
    assert headings[:3] == [
        "Arguments:",
        "Options:",
        "Rows that are participations:",
    ]
    listed = re.findall(r"^  (--[a-z-]+)", text.partition(headings[2])[2], re.M)
    assert listed[:3] == ["--where", "--repeats", "--leave-out-invalid"]


def test_the_help_says_of_every_command_what_it_does_in_whole_words(fedray_command) -> None:
    code, out, _ = fedray_command("--help")
    assert code == 0
    commands = out.partition("Simulate and train:")[2]
    assert "..." not in commands
    assert "paired differences, privacy and costs." in " ".join(commands.split())
    assert re.findall(r"^[A-Z].*(?=:$)", out, re.M) == ["Options", *GROUPS, REPRODUCE]


@pytest.mark.slow
def test_audit_loads_neither_ray_nor_torch_nor_jax(trace: Path) -> None:
    assert_not_loaded(["ray", "torch", "jax"], ["audit", str(trace), "--json"])


@pytest.mark.slow
def test_report_loads_neither_ray_nor_torch_nor_jax(trace: Path, tmp_path: Path) -> None:
    assert_not_loaded(
        ["ray", "torch", "jax", "matplotlib"],
        ["report", str(trace), "--out", str(tmp_path / "p.html")],
    )


@pytest.mark.slow
def test_an_untrained_run_in_one_process_loads_neither_ray_nor_torch_nor_an_optimiser(
    small, tmp_path: Path
) -> None:
    (tmp_path / "s.toml").write_text(small("rounds.count=2").to_toml())
    out = ["--out", str(tmp_path / "t"), "--place", "backend=in-process", "--json"]
    assert_not_loaded(
        ["ray", "torch", "jax", "scipy.optimize", "dp_accounting", "matplotlib"],
        ["run", str(tmp_path / "s.toml"), *out],
    )


def assert_not_loaded(modules: list[str], arguments: list[str]) -> None:
    program = (
        "import sys\nfrom fedray.cli import command\nsys.argv[0] = 'fedray'\n"
        "assert not command()\n"
        f"loaded = [name for name in {modules!r} if name in sys.modules]\nassert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
