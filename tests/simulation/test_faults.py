"""Actors that die: one clear error, and nothing left behind."""

import os
from pathlib import Path

import pytest

from fedray.errors import AggregatorLost, ShardLost
from fedray.placement import Placement
from fedray.simulation import simulate

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def children_named(name: str) -> list[int]:
    """Processes on this machine whose title starts with a name; Ray titles its actors."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().decode(errors="replace").startswith(name):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize(("actor", "error"), [("ray::_ShardBody", ShardLost), ("ray::_AggregatorBody", AggregatorLost)])
def test_a_killed_actor_ends_the_run_with_its_name(small, tmp_path: Path, actor: str, error: type) -> None:
    before = set(children_named(actor))

    def kill_after_three_rounds(progress) -> None:
        if progress.committed == 3:
            for process in set(children_named(actor)) - before:
                os.kill(process, 9)

    scenario = small("training.enabled=true", "rounds.count=200", "population.devices=100000", "participation.timer_hours=1.0")
    with pytest.raises(error, match="died"):
        simulate(scenario, Placement(shards=1), tmp_path / "t", kill_after_three_rounds)
    assert list(tmp_path.iterdir()) == []
