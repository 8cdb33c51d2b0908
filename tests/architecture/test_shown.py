"""What the pages show works at length: the program, the task, the claim, the commands about
mechanisms. `test_docs.py` has what holds for every page."""

import re
import tomllib
from pathlib import Path

import pytest

from fedray.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "scenarios" / "quickstart.toml"


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def python_of(name: str) -> str:
    """The first Python block of a page."""
    found = re.search(r"```python[^\n]*\n(.*?)```", page(name), flags=re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_the_program_runs(capsys, tmp_path: Path, monkeypatch) -> None:
    """At full size, 20 rounds."""
    program = python_of("python").replace(
        '"scenarios/', f'"{Path(__file__).resolve().parents[2]}/scenarios/'
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "python.md", "exec"), {})
    assert re.search(r"participations \(accepted\) +130,000\n", capsys.readouterr().out)


@pytest.mark.slow
def test_the_task_keeps_the_contract_and_learns(tmp_path: Path, monkeypatch) -> None:
    """By the options that the page shows, on a small population."""
    from task_contract import CHECKS

    from fedray.clients.tasks.custom import CustomTask
    from fedray.runs.pipeline import run_scenario
    from fedray.runtime.placement import Placement
    from fedray.scenario.tasks import CustomTask as CustomTable

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_task.py").write_text(python_of("train"))
    shown = page("train").replace("\\\n", "")
    command = next(line for line in shown.splitlines() if "training.file=" in line)
    overrides = re.findall(r"--set (\S+)", command)
    small = ("rounds.count=12", "rounds.report_goal=100", "training.cohort_sample=100")
    quiet = (
        "privacy.noise_multiplier=0.01",
        "training.evaluate_every=6",
        "population.devices=20_000",
    )
    scenario = Scenario.from_toml(QUICKSTART, [*small, *quiet]).with_overrides(*overrides)
    table = scenario.training.task
    assert isinstance(table, CustomTable)

    def made(seed: int):
        task = CustomTask(table, seed, {})
        assert task.source is not None
        return task, task.source

    for check in CHECKS:
        check(made)
    trained = run_scenario(scenario, Placement(1, "in-process"), tmp_path / "t").trained
    assert trained is not None
    accuracy = trained.metrics["evaluation_accuracy"]
    assert accuracy[11] > 0.8


def test_the_claim_shown_is_valid_and_has_every_key() -> None:
    from fedray.audit.claims import Claim

    found = re.search(r'```toml title="every-key.toml"\n(.*?)```', page("audit"), flags=re.DOTALL)
    assert found is not None
    shown = found[1]
    tables = tomllib.loads(shown)
    assert set(tables) == set(Claim.model_fields)
    required = {name for name, field in Claim.model_fields.items() if field.is_required()}
    assert required == {"mechanism", "noise_multiplier"}
    Claim.model_validate({**tables, "mechanism": {"kind": "tree"}})


@pytest.mark.slow
def test_the_mechanism_shown_for_python_is_that_of_the_command(tmp_path: Path) -> None:
    import fedray
    from fedray.cli import app

    request = re.search(r"`fedray\.optimize_mechanism\((.*)\)`", page("mechanism"))
    assert request is not None
    made = fedray.optimize_mechanism(eval(request.group(1), {"fedray": fedray}))
    setting = "--rounds 2052 --min-sep 342 --max-participations 6 --buffers 2 --workload prefix"
    out = tmp_path / "blt.json"
    app(["optimize", "blt", *setting.split(), "--out", str(out)], standalone_mode=False)
    assert made == fedray.read_strategy(out)
