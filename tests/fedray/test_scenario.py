"""Scenarios: read, written, overridden, digested; and every mistake named with key, value, rule and remedy."""

from pathlib import Path

import pytest

from fedray.base.errors import ScenarioError
from fedray.scenario import Scenario
from fedray.scenario.overrides import apply_override
from fedray.scenario.several_tasks import read_scenario
from fedray.scenario.shipped import find_scenario, shipped_scenarios
from fedray.scenario.training import CustomOptimizer, FedAvg


def test_toml_round_trip_keeps_every_value(small, tmp_path: Path) -> None:
    scenario = small("population.reach=0.7", "availability.weekend_factor=0.9")
    file = tmp_path / "s.toml"
    file.write_text(scenario.to_toml())
    assert Scenario.from_toml(file) == scenario


def test_digest_follows_the_content_not_the_name(small) -> None:
    assert small("name='other'").digest == small().digest
    assert small("seed=8").digest != small().digest
    assert small("rounds.over_selection=1.31").digest != small().digest


@pytest.mark.parametrize(
    ("digest", "keys"),
    [
        ("1e30d1268b920933", []),
        (
            "8bc24ec157a3c602",
            [
                "training.task.kind=keyboard_lstm",
                "training.client.kind=fedprox",
                "training.server.kind=adam",
            ],
        ),
        (
            "4570dba7f7564a95",
            ["rounds.mode=buffered", "rounds.buffer={concurrency=400,max_staleness=3}"],
        ),
        (
            "d4732009c9754744",
            ["privacy.encoding.kind=secagg", "availability={model='poisson',sessions_per_day=1.0}"],
        ),
    ],
)
def test_a_new_key_leaves_the_digest_of_scenarios_without_it(small, digest: str, keys) -> None:
    """A run is resumed, and a ledger's reservation found, by this digest. See docs/extending.md."""
    assert small(*keys).digest.startswith(digest)


def test_as_many_devices_are_selected_as_the_goal_needs_rounded_up(small) -> None:
    assert small("rounds.report_goal=201").rounds.selection_target == 262  # 1.3 x 201 = 261.3
    assert small("rounds.report_goal=200").rounds.selection_target == 260


def test_overrides_take_toml_values_and_bare_words(small) -> None:
    scenario = small(
        "participation.timer_resets_on=selected",
        "rounds.count=3",
        "privacy.mechanism={kind='tree'}",
    )
    assert scenario.participation.timer_resets_on == "selected"
    assert scenario.rounds.count == 3
    assert scenario.privacy.mechanism.kind == "tree"


def test_an_override_replaces_a_kind_that_is_none(small) -> None:
    tables = small().to_tables()
    tables["privacy"]["mechanism"] = {"kind": [1]}
    apply_override(tables, "privacy.mechanism.kind=identity")
    assert Scenario.from_tables(tables).privacy.mechanism.kind == "identity"


def test_every_shipped_scenario_is_valid_and_described() -> None:
    shipped = shipped_scenarios()
    assert len(shipped) == 24
    assert shipped[-1][0].name == "upload-then-train.toml"
    assert all(scenario.description for _, scenario in shipped)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("rounds.report_gaol=5", ["rounds.report_gaol", "5", "did you mean 'report_goal'"]),
        ("nonsense.key=1", ["nonsense", "top level", "population"]),
        ("rounds.report_goal=30000", ["report_goal=30000", "20000", "lower the goal"]),
        (
            "rounds.report_goal=-5",
            ["rounds.report_goal = -5", "greater than 0", "Number of reports that close"],
        ),
        ("rounds.report_goal=2.5", ["rounds.report_goal = 2.5", "integer"]),
        ("population.devices=true", ["population.devices", "True", "integer"]),
        (
            "privacy.noise_multiplier=nan",
            ["privacy.noise_multiplier = nan", "finite", "Standard deviation of the noise"],
        ),
        ("privacy.noise_multiplier=inf", ["privacy.noise_multiplier = inf", "finite"]),
        (
            "privacy.noise_multiplier=0",
            ["privacy.noise_multiplier = 0", "greater than or equal to 0.01"],
        ),
        ("privacy.delta=1.0", ["privacy.delta = 1.0", "less than 1"]),
        ("privacy.mechanism={kind='blt',theta=[1.0],omega=[0.1]}", ["theta", "1.0", "less than 1"]),
        ("privacy.mechanism={kind='blt',theta=[0.5,0.5],omega=[0.1,0.1]}", ["distinct"]),
        ("privacy.mechanism={kind='blt',theta=[0.5],omega=[0.1,0.1]}", ["one omega per theta"]),
        (
            "training.enabled=no",
            ["training.enabled = 'no': input should be true or false, in lower case"],
        ),
        ("privacy.mechanism={kind='magic'}", ["privacy.mechanism", "magic", "blt"]),
        ("population.time_zones=[{utc_offset_hours=0.0,share=0.4}]", ["shares sum to 0.4"]),
        (
            "latency.setup_seconds=1800",
            ["report_timeout_minutes=30", "no device can report in time"],
        ),
        ("participation.timer_hours=1e9", ["timer_hours", "1000000000.0", "less than or equal to"]),
        ("latency.speed_between=800", ["latency.speed_between = 800", "less than or equal to 3"]),
        (
            "rounds.selection_timeout_minutes=1e-12",
            ["selection_timeout_minutes", "greater than or equal to 1"],
        ),
        ("privacy.clip_norm=1e-300", ["privacy.clip_norm", "greater than or equal to 0.000001"]),
        ("privacy.clipping.kind=adaptive", ["adaptive", "this blt mechanism", "use kind 'tree'"]),
        (
            "privacy={clipping={kind='adaptive'},mechanism={kind='tree',restarts=[12]}}",
            ["does not restart", "this tree mechanism", "rounds.count=12"],
        ),
        (
            "privacy={clipping={kind='adaptive'},noise_multiplier=20.0,mechanism={kind='identity'}}",
            ["noise_multiplier=20", "count_noise=10", "2 count_noise = 20", "above 10"],
        ),
        (
            "privacy.clipping={kind='adaptive',quantile=1.0}",
            ["privacy.clipping.quantile = 1.0", "less than 1"],
        ),
        (
            "privacy={clipping={kind='schedule',steps=[{from_round=3,norm=0.5}]},mechanism={kind='tree',restarts=[5,7]}}",
            ["privacy.clipping.steps", "from_round=3", "choose from 5, 7"],
        ),
        (
            "privacy={clipping={kind='schedule',steps=[{from_round=5,norm=0.5},{from_round=5,norm=1.0}]},mechanism={kind='identity'}}",
            ["5, 5", "must increase", "sort the steps"],
        ),
        (
            "privacy.clipping={kind='schedule',steps=[{from_round=3,norm=0.5}]}",
            ["'schedule'", "this blt mechanism", "use kind 'tree'"],
        ),
        ("privacy.clipping.kind=median", ["privacy.clipping.kind", "median", "per_layer"]),
        (
            "privacy.clipping={kind='per_layer',norms=[0.8,0.7]}",
            ["clipping.norms", "1.06301", "clip_norm=1", "lower the norms"],
        ),
        ("privacy.clipping.zero_above=0.5", ["privacy.clipping.zero_above", "greater than 1"]),
        (
            "privacy.mechanism={kind='bisr',bands=3,restarts=[3]}",
            ["unknown key privacy.mechanism.restarts"],
        ),
        ("training.devices_at_once=many", ["at_once = 'many'", "valid integer; correct it"]),
        ("rounds.look_ahead_minutes=7", ["look_ahead_minutes", "7", "of a day"]),
        ("participation.timer_resets_on=never", ["timer_resets_on", "never", "accepted"]),
        ("rounds.report_goal", ["table.key=value"]),
        ("name.deep=1", ["name", "not a table"]),
        ("availability.day_start_hours=[23.0,8.0]", ["day_start_hours", "increasing hours"]),
    ],
)
def test_a_mistake_is_named_in_one_line_with_its_remedy(
    small, override: str, parts: list[str]
) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(override)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


@pytest.fixture
def file(small, tmp_path: Path) -> Path:
    (tmp_path / "s.toml").write_text(small().to_toml())
    return tmp_path / "s.toml"


def blame(file: Path, *overrides: str) -> list[str]:
    """Whom each problem is said to come from: what precedes its first colon."""
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml(file, overrides)
    return [line.replace(str(file), "FILE").split(": ")[0] for line in caught.value.problems]


def test_a_problem_names_the_override_that_it_is_not_there_without(file: Path) -> None:
    applied = ", applied to FILE"
    assert blame(file, "rounds.cuont=3") == [f"override 'rounds.cuont=3'{applied}"]
    # The rule speaks of a key of the file, and the override broke it.
    assert blame(file, "seed=3", "population.devices=10") == [
        f"override 'population.devices=10'{applied}"
    ]
    assert blame(file, "rounds.report_goal=3", "population.devices=2") == [
        f"override 'rounds.report_goal=3' and override 'population.devices=2'{applied}"
    ]
    assert blame(file, "rounds.count=x", "seed=y") == [
        f"override 'seed=y'{applied}",
        f"override 'rounds.count=x'{applied}",
    ]


def test_a_problem_of_the_file_names_the_file_beside_any_override(file: Path) -> None:
    file.write_text(file.read_text().replace("report_goal", "report_gaol"))
    assert blame(file, "seed=3") == ["FILE"]
    assert blame(file, "seed=y") == ["FILE", "override 'seed=y', applied to FILE"]


def test_the_command_names_an_override_by_its_flag(fedray_command, file: Path) -> None:
    code, _, err = fedray_command("run", str(file), "--set", "rounds.cuont=3")
    assert code == 2
    assert f"fedray: --set 'rounds.cuont=3', applied to {file}: unknown key rounds.cuont" in err
    code, _, err = fedray_command("run", str(file), "--set", "rounds.count")
    assert code == 2
    assert "fedray: --set 'rounds.count' must have the form table.key=value" in err


def test_overrides_of_several_tasks_are_named(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(find_scenario("several-tasks").read_text())
    with pytest.raises(ScenarioError, match=r"^override 'seed=x', applied to .*s\.toml, task "):
        read_scenario(file, ["seed=x"])


def test_missing_tables_are_named(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("[population]\ndevices = 10\n")
    with pytest.raises(ScenarioError, match="rounds is missing"):
        Scenario.from_toml(file)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"seed = = 1", "not valid TOML"), (b"\xff\xfe", "it is UTF-16"), (None, "does not exist")],
)
def test_files_that_are_no_scenario_are_refused(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    file = tmp_path / "s.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ScenarioError, match=expected):
        Scenario.from_toml(file)


def test_every_field_is_described() -> None:
    schema = Scenario.model_json_schema()
    tables = {"Scenario": schema, **schema["$defs"]}
    top = {
        "population",
        "availability",
        "participation",
        "latency",
        "rounds",
        "training",
        "privacy",
    }
    undocumented = [
        f"{table}.{name}"
        for table, content in tables.items()
        for name, field in content.get("properties", {}).items()
        if not field.get("description") and name not in top
    ]
    assert not undocumented


def test_the_default_encoding_is_not_written_down(small) -> None:
    """So scenarios without the key keep their digest."""
    scenario = small()
    assert "encoding" not in scenario.to_tables()["privacy"]
    named = scenario.with_overrides("privacy.encoding.kind=fixed_point")
    assert (named, named.digest) == (scenario, scenario.digest)


def test_a_momentum_beside_adam_is_refused() -> None:
    steps = {"learning_rate": 0.1, "optimizer": "adam"}
    assert FedAvg.model_validate(steps)
    with pytest.raises(ValueError, match=r"momentum=0\.5: adam has its own; leave it out, or take"):
        FedAvg.model_validate({**steps, "momentum": 0.5})
    assert FedAvg.model_validate({**steps, "momentum": 0.5, "optimizer": "sgd"})


def test_an_optimizer_file_needs_no_kind_and_its_digest_is_that_with_one(
    small, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text("import torch\n\noptimizer = torch.optim.SGD\n")
    assert CustomOptimizer(file=str(file)) == CustomOptimizer(kind="custom", file=str(file))
    key, named = "training.client.optimizer", f'{{kind="custom",file="{file}"}}'
    short = small(f'{key}={{file="{file}"}}')
    assert short.digest == small(f"{key}={named}").digest
    assert short.to_tables()["training"]["client"]["optimizer"]["kind"] == "custom"
    with pytest.raises(ScenarioError, match="kind"):
        small(f'{key}={{kind="sgd",file="{file}"}}')


def test_a_name_with_a_space_is_refused_in_plain_words(small) -> None:
    with pytest.raises(ScenarioError, match=r"name = 'my run': may hold only letters, digits and"):
        small("name='my run'")
