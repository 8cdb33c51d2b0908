"""One model under every kind of trust, at one epsilon against the party from which a kind protects.

All runs share a trace. With `server` nothing protects from the operator of the server, so epsilon
is against whoever gets the models. With the other kinds it is against the operator. An interrupted
study continues from the trace and the trained runs in OUT.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict

import fedray
from .reproduction import (
    MODELS,
    NETWORK,
    OBSERVERS,
    OPERATOR,
    Document,
    MeanInterval,
    Observer,
    Option,
    Reproduced,
    Reproduction,
    Request,
    Subject,
    Table,
    comparison_of,
    in_steps,
    interval_text,
    least_noise_multiplier,
    observed_epsilon,
    paired_difference,
    share_of,
    statements_table,
    trace_in,
    up,
)

SMALL = Path(__file__).parent / "small.toml"
IDENTITY = "privacy.mechanism={kind='identity'}"
DEVICES, LOCAL = (
    f"privacy.trust={{kind='{kind}',parameters=210,scale=4096}}" for kind in ("devices", "local")
)
"""Noise of devices, for the 210 parameters of its model."""
CUT = "privacy.trust.coefficients=150"
"""Coefficients of the BLT that a store keeps."""
WITHIN = 2.0
"""Points of accuracy within which devices and an enclave are as good as a server."""
NOTES = (
    "Noise is chosen so that whoever gets the models has this epsilon (server), or the operator of "
    "the server (others). It is that of a BLT, of which a store keeps 150 coefficients, or "
    "independent (identity). A third of the devices may be malicious.",
    "Gaussian noise is accounted exactly. Noise of devices is accounted by zCDP, which is slightly "
    "too pessimistic.",
    "Intervals are 95 %, Student's over seeds; a difference is between trainings of one seed.",
)


class Setting(NamedTuple):
    """A kind of trust with its mechanism."""

    name: str
    """Name in tables."""
    observer: str
    """Observer against whom the noise is chosen."""
    cost: float
    """Time of a training, in those of `server`."""
    keys: tuple[str, ...] = ()
    """Keys of the scenario."""

    @property
    def folder(self) -> str:
        """Beginning of the names of its trained runs."""
        return self.name.replace(", ", "-")


SETTINGS = (
    Setting("server", MODELS, 1.0),
    Setting("enclave", OPERATOR, 1.0, ("privacy.trust.kind=enclave",)),
    Setting("devices", OPERATOR, 2.5, (DEVICES, CUT)),
    Setting("devices, identity", OPERATOR, 1.0, (IDENTITY, DEVICES)),
    Setting("local, identity", OPERATOR, 1.0, (IDENTITY, LOCAL)),
)
"""Kinds of trust, in the order of the tables."""


@dataclass(frozen=True, slots=True)
class TrustRow(Document):
    """Privacy and accuracy under a kind of trust."""

    setting: str
    """Kind of trust, and its mechanism if that is not the BLT."""
    noise_multiplier: float
    """Least noise multiplier that meets the epsilon."""
    observers: tuple[Observer, ...]
    """Privacy from each observer."""
    update_noise: float
    """Norm of independent noise on each mean update that would disturb the model as much, in clip
    norms."""
    accuracy: MeanInterval
    """Accuracy after the last round, over seeds."""
    beyond_server: MeanInterval
    """Accuracy minus that of `server`, over seeds."""

    def against(self, name: str) -> Observer:
        """Returns the privacy from an observer."""
        return next(each for each in self.observers if each.name == name)


class Trusts(TypedDict):
    """`fedray reproduce trust`."""

    rows: list[TrustRow]
    """A row for each kind of trust."""
    comparison: "fedray.Comparison"
    """The trainings."""


def run(request: Request, *, epsilon: float, seeds: int) -> Iterator[Reproduced]:
    """Simulates a trace, then calibrates and trains every kind of trust.

    Args:
        request: see `Request`; `out` keeps the trace and the trained runs.
        epsilon: epsilon of every kind.
        seeds: number of trainings of each kind.

    Raises:
        InputError: there are too few seeds, no noise meets epsilon, or `out` holds other trainings.
    """
    if seeds < 2:
        raise fedray.InputError.of("seeds", seeds, "must be at least 2", "5 give an interval")
    base = fedray.Scenario.from_toml(SMALL, request.overrides)
    with tempfile.TemporaryDirectory(prefix="fedray-trust-") as temporary:
        folder = (request.out or Path(temporary)).absolute()
        trace = trace_in(folder / "trace", base, request)
        calibrated, runs = {}, {}
        for each, tell in in_steps(
            request, SETTINGS, name=lambda each: each.name, cost=lambda each: each.cost
        ):
            own = _calibrated(base.with_overrides(*each.keys), trace, each.observer, epsilon)
            wanted = {
                seed: (
                    own.with_overrides(f"training.seed={seed}"),
                    folder / "runs" / f"{each.folder}-{seed}",
                )
                for seed in range(1, seeds + 1)
            }
            trained = fedray.train_many(
                trace, wanted, request.placement, lambda line, tell=tell: tell(share_of(line))
            )
            calibrated[each.name], runs[each.name] = own, [*trained.values()]
        names = [each.name for each in SETTINGS]
        all_runs = [run for name in names for run in runs[name]]
        comparison = comparison_of(all_runs, trace, None, names)
        yield _reproduced(comparison, _rows(comparison, trace, calibrated), epsilon)


def _calibrated(
    scenario: fedray.Scenario, trace: fedray.Trace, observer: str, epsilon: float
) -> fedray.Scenario:
    """Returns the scenario with the least noise that meets epsilon against an observer."""

    def with_noise(z: float) -> fedray.Scenario:
        return scenario.with_overrides(f"privacy.noise_multiplier={z!r}")

    def spent(z: float) -> float:
        audit = fedray.audit_trace(trace, scenario=with_noise(z))
        (found,) = (each for each in audit.observers or () if each.name == observer)
        assert found.epsilon is not None, "noise protects from this observer"
        return found.epsilon

    return with_noise(least_noise_multiplier(spent, epsilon))


def _rows(
    comparison: "fedray.Comparison",
    trace: fedray.Trace,
    scenarios: Mapping[str, fedray.Scenario],
) -> list[TrustRow]:
    server, name = comparison.groups[0], "accuracy"
    rows = []
    for group in comparison.groups:
        own = scenarios[group.label]
        observers = fedray.audit_trace(trace, scenario=own).observers
        assert observers is not None, "a run has observers"
        rows.append(
            TrustRow(
                group.label,
                own.privacy.noise_multiplier,
                observers,
                group.first.document["update_noise"],
                comparison.mean(group, name),
                paired_difference(group.finals(name), server.finals(name)),
            )
        )
    return rows


def _reproduced(
    comparison: "fedray.Comparison", rows: list[TrustRow], epsilon: float
) -> Reproduced:
    by_name = {each.setting: each for each in rows}
    local = by_name["local, identity"]
    models, operator = (local.against(name).epsilon for name in (MODELS, OPERATOR))
    assert models is not None
    assert operator is not None
    spent = [each.against(OPERATOR).epsilon for each in rows]
    as_good = (100.0 * by_name[name].beyond_server.mean for name in ("enclave", "devices"))
    lost = -100.0 * local.beyond_server.mean
    statements = (
        ("nothing protects from the operator of a server", spent[0] is None),
        (
            f"epsilon against other operators is at most {epsilon:g}",
            all(each is not None and each <= epsilon for each in spent[1:]),
        ),
        ("local noise protects better from those who get the models", models < operator),
        (
            f"devices and an enclave lose less than {WITHIN:g} points",
            all(each > -WITHIN for each in as_good),
        ),
        ("local noise loses more", local.beyond_server.high < 0 and lost > WITHIN),
    )
    agrees = all(holds for _, holds in statements)
    cells = {
        "trust": lambda each: each.setting,
        "noise mult.": lambda each: up(each.noise_multiplier),
        **{
            name: lambda each, name=name: observed_epsilon(each.against(name))
            for name in OBSERVERS
            if name != NETWORK
        },
    }
    accuracy = {
        "trust": lambda each: each.setting,
        "noise in effect, clip norms": lambda each: f"{each.update_noise:.2f}",
        "accuracy ± 95 %": lambda each: interval_text(each.accuracy, ".4f"),
        "minus server": lambda each: (
            "" if each is rows[0] else interval_text(each.beyond_server, "+.4f")
        ),
    }

    def subject(unit: str = "", sample: str = "") -> Callable[[TrustRow], Subject]:
        return lambda row: Subject(condition=row.setting, unit=unit, sample=sample)

    delta = f"{comparison.delta:g}"
    return Reproduced(
        "Who is it private from, and what does it cost?",
        {"rows": [each.to_json() for each in rows], "comparison": comparison.to_json()},
        [
            Table.of(
                f"Epsilon at delta {delta}, by observer",
                rows,
                cells,
                subject=subject(unit="device"),
            ),
            Table.of(
                "Noise in effect on a mean update, and accuracy",
                rows,
                accuracy,
                subject=subject(sample=comparison.sample),
            ),
            statements_table(statements),
        ],
        NOTES,
        f"Local noise loses {lost:.1f} points of accuracy to a server at epsilon {epsilon:g}. "
        f"{'All' if agrees else 'Not all'} statements hold.",
        agrees,
        [each for each in comparison.figures() if each.name == "accuracy"],
        comparison.of,
    )


REPRODUCTION = Reproduction(
    "trust",
    "One model under every kind of trust: epsilon of every observer, and accuracy.",
    "Kairouz, Liu, Steinke 2021; Ball et al. 2024",
    "3 min",
    run,
    (
        Option("epsilon", float, 4.0, "Epsilon against the party that a kind protects from."),
        Option("seeds", int, 5, "Trainings of each kind."),
    ),
    has_overrides=True,
    has_placement=True,
    has_figures=True,
    is_resumable=True,
)
