"""What a notebook shows: values by what differs from the defaults, names, rows with settings."""

import fedray
from fedray.mechanisms import BLT, Tree
from fedray.mechanisms.participation import MinSep
from fedray.scenario import Scenario


def test_a_scenario_prints_what_differs_from_the_defaults_and_reads_it_back(small) -> None:
    scenario = small("participation.timer_hours=12.5", 'privacy.mechanism={kind="tree"}')
    shown = repr(scenario)
    assert "timer_hours=12.5" in shown
    assert "mechanism=Tree()" in shown
    assert "over_selection" not in shown
    assert "latency" not in shown
    assert repr(BLT(theta=(0.5,), omega=(0.1,))) == "BLT(theta=(0.5,), omega=(0.1,))"
    names = vars(__import__("fedray.scenario", fromlist=["*"]))
    made = {name: getattr(fedray.scenario, name) for name in fedray.scenario.__all__}
    assert eval(shown, {**names, **made, "Tree": Tree, "Scenario": Scenario}) == scenario


def test_completion_has_no_names_of_pydantic(small) -> None:
    names = dir(small())
    assert {"population", "with_overrides", "to_toml"} <= set(names)
    assert not [each for each in names if each.startswith("model_")]
    assert not {"copy", "json", "dict", "parse_obj", "construct", "schema"} & set(names)


def test_figures_of_a_mechanism_need_neither_noise_nor_delta() -> None:
    found = fedray.mechanism_figures(Tree(), MinSep(20, 5, 3))
    assert (found.noise_multiplier, found.epsilon, found.delta) == (None, None, 1e-10)


def test_rows_of_arrow_have_the_settings_and_epsilon(trace_of, trained_of) -> None:
    trace = trace_of([[0, 2], [1, 3], [0]], 4)
    runs = [
        trained_of("blt", trace, {"accuracy": 0.5}),
        trained_of("none", trace, {"accuracy": 0.6}, "privacy.mechanism=none"),
    ]
    found = fedray.compare_runs(runs, trace)
    blt, silent = found.to_arrow().to_pylist()
    assert (blt["mechanism"], blt["delta"]) == ("blt", found.delta)
    assert blt["epsilon_observed"] == found.groups[0].epsilon["observed"]
    assert (silent["noise_multiplier"], silent["epsilon_observed"]) == (None, None)
    (row, *_) = runs[0].to_arrow().to_pylist()
    assert row["mechanism"] == "blt"
    assert row["noise_multiplier"] == blt["noise_multiplier"]
