"""Who a device is private from: the models' row is the verdict, no other is below it, and each has the noise and the draws that the observer does not know."""

import json
import math
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from drawn_runs import Drawn, drawn, words
from test_basis import (
    asking,
    buffered,
    claim_of_a_run,
    filtered,
    model,
    persons,
    sampled,
    several_tasks,
    silent,
    stored_uploads,
    trained,
    vocabulary,
)

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim, read_claim
from fedray.audit.ledger import Ledger
from fedray.audit.observers import (
    DEVICE,
    MODELS,
    NETWORK,
    NOISE,
    NOTHING,
    OBSERVERS,
    OPERATOR,
    SHUFFLER,
    SYBILS,
    UNKNOWN,
    NotProtected,
    Part,
    Releases,
    without_sampling,
)
from fedray.audit.privacy_statement import privacy_statement
from fedray.base.errors import InputError
from fedray.base.rounding import up
from fedray.encoding.tables import MALICIOUS_SHARE
from fedray.imports.importer import import_log
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import (
    Composed,
    DiscreteGaussianSum,
    Event,
    FixedSizeSampled,
    Gaussian,
    MinSepSampled,
    PoissonSampled,
    Repeated,
)
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.questions.local import ShuffledReports
from fedray.mechanisms.questions.open_domain import PrefixTree
from fedray.mechanisms.questions.registry import Devices, Enclave, Local, Server, Shuffled
from fedray.mechanisms.questions.trust import Budget
from fedray.mechanisms.registry import BandFHU, Tree
from fedray.report.audits import guarantees_table, observers_table
from fedray.report.figures import malicious_devices
from fedray.report.page import audit_page
from fedray.report.terminal import short_audit_text
from fedray.runs.budgeted import reserved
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario

PATTERNS = [[0, 2], [1, 3], [0], [1, 2], [3], [0, 3], [1], [2]]
"""Rounds of eight devices; the four rounds have three of them each."""
IDENTITY = "privacy.mechanism={kind='identity'}"
DEVICES = (IDENTITY, "privacy.trust={kind='devices', parameters=1000, scale=4096}")
LOCAL = (IDENTITY, "privacy.trust={kind='local', parameters=1000, scale=4096}")
ENCLAVE = ("privacy.trust={kind='enclave'}",)
# Discrete noise with a small share of each device, whose tau counts.
COARSE = {"parameters": 3, "scale": 2}


def test_an_enclave_rests_on_the_claim_that_the_run_had_to_ensure(small, tmp_path: Path) -> None:
    """The operator's rows name it; a server and devices keep no policy for their operator."""
    place = Placement(1, "in-process")
    limits = ("participation.round_separation=2", "participation.max_participations=2")
    scenario = small(*ENCLAVE, *limits)
    mechanism, z = scenario.privacy.mechanism, scenario.privacy.noise_multiplier
    claim = Claim(mechanism=mechanism, noise_multiplier=z, rounds=scenario.rounds.count)
    for name, ensured in (("with", claim), ("without", None)):
        audit = audit_trace(run_scenario(scenario, place, tmp_path / name, ensure=ensured))
        assert audit.observers is not None
        said = f"the claim {claim.digest[:12]}" if ensured else "no claim"
        named = {each.name for each in audit.observers if f"; {said} was ensured" in each.reason}
        assert named == {OPERATOR, SYBILS}
        assert f"{said} was ensured" in audit_page(audit)
        # Figures of a mechanism of one's own choice are of the same run.
        assert audit_trace(audit.trace, noise_multiplier=9.0).observers is not None
        other = audit_trace(audit.trace, noise_multiplier=9.0).observers_of_verdict[2].reason
        assert other.endswith(f"{said} was ensured")
    by_server = audit_trace(simulate(small(*limits), place, tmp_path / "server"))
    assert by_server.observers is not None
    assert not any("was ensured" in each.reason for each in by_server.observers)


def test_trust_models_of_one_kind_differ_by_their_parameters(tmp_path: Path) -> None:
    tables = {
        "population": {"devices": 3000},
        "participation": {"timer_hours": 20.0, "timer_resets_on": "upload"},
        "rounds": {
            "mode": "upload-then-train",
            "count": 2,
            "report_goal": 500,
            "uploads": {"window_hours": 24.0, "windows": 2, "schedule": {"kind": "all"}},
        },
        "analytics": {
            "question": {"kind": "histogram", "size": 16},
            "values": {"kind": "words", "words": 16},
            "trust": [
                {"kind": "devices", "least_devices": 100},
                {"kind": "local"},
                {"kind": "devices", "least_devices": 300},
            ],
            "epsilon": 1.0,
            "delta": 1e-8,
        },
        "training": {"enabled": False},
    }
    audit = audit_trace(
        simulate(Scenario.from_tables(tables), Placement(1, "in-process"), tmp_path / "t")
    )
    names = ["devices (least_devices=100)", "local", "devices (least_devices=300)"]
    assert [each.trust for each in audit.released] == names
    table = observers_table(audit)
    assert table is not None
    assert [each.trust for each in audit.observers or ()] == [
        name for name in names for _ in OBSERVERS
    ]
    shown = table.text(300)
    assert all(name in shown for name in names)


# 300 random crosses of features


def asked(each: Drawn) -> dict[str, Any]:
    """Tables of a question, whose noise is that of a whole round of devices."""
    tables = asking(each)
    tables["analytics"]["epsilon"] = each.pick(0.6, 1.0, 2.0)
    for trust in tables["analytics"]["trust"]:
        if "least_devices" in trust:
            trust["least_devices"] = 20
    return tables


def question(each: Drawn) -> Audit:
    return audit_trace(each.run(**asked(each)))


def both(each: Drawn) -> Audit:
    return trained(each.run(**asked(each)), each)


def vocabulary_and_question(each: Drawn) -> Audit:
    return trained(each.run(data=words(each, each.rng.uniform(0.1, 4)), **asked(each)), each)


def question_of_a_silent_model(each: Drawn) -> Audit:
    trace = each.run(**asked(each), privacy={"mechanism": {"kind": "none"}})
    return trained(trace, each)


def other_mechanism(each: Drawn) -> Audit:
    return audit_trace(each.run(), float(each.rng.uniform(0.5, 9)), mechanism=Tree())


def claim_of_a_log(each: Drawn) -> Audit:
    rows = "".join(
        f"d{device},{round_}\n"
        for round_ in range(9)
        for device in each.rng.permutation(20)[: int(each.rng.integers(3, 7))].tolist()
    )
    (each.folder / "log.csv").write_text("device,round\n" + rows)
    trace = import_log(each.folder / "log.csv", "device", "round", 9, each.folder / "t")
    limits = {"min_sep": each.pick(None, 1, 4), "max_participations": each.pick(None, 3, 9)}
    trust = each.tables["privacy"].get("trust")
    mechanism = each.tables["privacy"]["mechanism"]
    noise = {"mechanism": mechanism, "noise_multiplier": 2.0, "epsilon": each.pick(None, 9.0)}
    return audit_trace(trace, claim=Claim.model_validate({**noise, **limits, "trust": trust}))


BY_ANYONE = (model, persons, several_tasks, silent, other_mechanism, claim_of_a_log)
"""Shapes of runs under every trust."""
BY_ONE = (
    *(sampled, filtered, buffered, stored_uploads, question, both, vocabulary),
    *(vocabulary_and_question, question_of_a_silent_model, claim_of_a_run),
)
"""Shapes that devices that add noise are refused, or that are accounted for with other noise."""
SILENT = (silent, question_of_a_silent_model)
CASES = 300


def crossed(case: int, folder: Path) -> tuple[Audit, str | None]:
    """The audit of a random run or log, and its kind of trust; None for a log without one."""
    each = drawn(case, folder)
    kind = each.pick("server", "devices", "enclave", "local")
    adds_noise = kind in ("devices", "local")
    shape = each.pick(*BY_ANYONE) if adds_noise else each.pick(*BY_ANYONE, *BY_ONE)
    table: dict[str, Any] = {"kind": kind}
    if adds_noise:
        each.tables["privacy"]["mechanism"] = {"kind": "identity"}
        table |= each.pick(COARSE, {"parameters": 1000, "scale": 4096})
        # Nothing is proven for less noise in such coarse steps.
        each.tables["privacy"]["noise_multiplier"] = each.pick(1.3, 4.0, 20.0)
        if kind == "devices":
            table["malicious_share"] = each.pick(0.0, 0.1, 0.34, 0.9)
    if shape in SILENT:
        # Devices that add no noise are refused.
        table = {"kind": each.pick("server", "enclave")}
    has_trust = shape is not claim_of_a_log or each.pick(True, True, False)
    each.tables["privacy"]["trust"] = table if has_trust else None
    if not has_trust:
        del each.tables["privacy"]["trust"]
    return shape(each), table["kind"] if has_trust else None


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case < 8 else pytest.mark.slow) for case in range(CASES)],
)
def test_the_models_row_is_the_verdict_and_no_other_is_below_it(case: int, tmp_path: Path) -> None:
    audit, kind = crossed(case, tmp_path)
    document = audit.to_json()
    if kind is None:
        assert audit.observers is None
        assert "observers" not in document
        assert not audit.released
        return
    assert audit.observers is not None
    rows, size = audit.observers, len(OBSERVERS)
    assert [each.name for each in rows if each.name not in OBSERVERS[1:]] == [
        each.recipients for each in audit.released
    ]
    names = [name for each in audit.released for name in (each.recipients, *OBSERVERS[1:])]
    assert [each.name for each in rows] == names
    stated, first = audit.basis.stated, audit.observers_of_verdict[0]
    assert first.epsilon == (None if stated is None else stated.epsilon)
    if stated is not None:
        assert first.delta == stated.delta
    if audit.supported_epsilon is not None:
        assert first.epsilon == audit.supported_epsilon
    # The scenario's order, as in the table of the answers.
    trusts = [each.parts[-1].trust for each in audit.released if each.parts[-1].name == "question"]
    asked = audit.scenario and audit.scenario.analytics
    if asked and stated is not None and len(trusts) > 1:
        assert trusts == [each.kind for each in asked.trust]
    assert document["observers"] == [each.to_json() for each in rows]
    for first in range(0, len(rows), size):
        models, device, operator, sybils, network = rows[first : first + size]
        check_rows(models, device, operator, sybils)
        assert network.protected_by == "encryption"
        assert network.epsilon is None
    told = {text for each in rows for text in each.assumptions}
    assert told <= {*audit.assumptions}
    table = observers_table(audit)
    if audit.released[0].is_silent:
        assert table is None
        return
    assert table is not None
    assert not table.mixed
    column = table.columns.index("epsilon")
    shown = [up(each.epsilon) if each.epsilon is not None else None for each in rows]
    for row, text in zip(table.rows, shown, strict=True):
        assert row[column] == text or (text is None and row[column] in ("none", "-"))


def check_rows(models: Any, device: Any, operator: Any, sybils: Any) -> None:
    """Whoever sees more has no smaller epsilon, and none against whom nothing protects."""
    if models.protected_by == NOTHING:
        assert {device.protected_by, operator.protected_by, sybils.protected_by} == {NOTHING}
        return
    if "server" in models.trust:
        assert operator.protected_by == sybils.protected_by == NOTHING
        assert "it adds the noise" in operator.reason
    if models.protected_by == UNKNOWN:
        assert {device.protected_by, operator.protected_by} <= {UNKNOWN, NOTHING}
        return
    for less, more in ((models, device), (models, operator), (operator, sybils)):
        assert more.protected_by in (NOISE, NOTHING)
        if less.epsilon is None or more.epsilon is None:
            assert more.epsilon is None
        else:
            assert more.epsilon >= less.epsilon
            assert more.delta == models.delta
    if models.trust in ("devices", "enclave"):
        assert operator.epsilon == models.epsilon


# Each row by hand


def rows_of(audit: Audit) -> dict[str, Any]:
    assert audit.observers is not None
    return {each.name: each for each in audit.observers}


def epsilon_by_hand(rho: float, delta: float) -> float:
    """The least over alpha of rho alpha + log(1 - 1/alpha) - log(alpha delta) / (alpha - 1) (Canonne, Kamath, Steinke 2020, Proposition 12), by a dense search."""
    orders = (1.0 + math.exp(step / 400) for step in range(-4800, 8000))
    return min(a * rho + math.log1p(-1.0 / a) - math.log(a * delta) / (a - 1.0) for a in orders)


@pytest.mark.parametrize("keys", [DEVICES, LOCAL], ids=["devices", "local"])
def test_noise_of_devices_is_that_of_those_whom_the_observer_does_not_know(
    keys, trace_of, small
) -> None:
    """Three devices a round and two participations at noise 4, so rho is 2 / (2 * 16) at the goal's noise."""
    scenario = small(*keys, "privacy.noise_multiplier=4.0", "rounds.report_goal=3")
    audit = audit_trace(trace_of(PATTERNS, 4, scenario))
    rows, delta = rows_of(audit), scenario.privacy.delta
    of_all = 2 / (2 * 16) if keys is DEVICES else 2 / (2 * 16 * 3)
    # Devices know one noise of three; a third of three devices is one more.
    expected = {MODELS: of_all, DEVICE: of_all * 3 / 2}
    if keys is DEVICES:
        expected |= {OPERATOR: of_all, SYBILS: of_all * 3 / 2}
    else:
        # The operator reads every message, with the noise of its own device.
        expected |= {OPERATOR: 3 * of_all, SYBILS: 3 * of_all}
    for name, rho in expected.items():
        assert rows[name].epsilon == pytest.approx(epsilon_by_hand(rho, delta), rel=1e-4), name
    assert rows[SYBILS].reason.startswith("noise of 2 of 3" if keys is DEVICES else "the noise")


def test_a_single_device_of_a_round_protects_itself_against_other_devices(trace_of, small) -> None:
    """With independent noise an observer in the round means two devices, so one noise is left."""
    scenario = small(*DEVICES, "rounds.report_goal=4")
    rows = rows_of(audit_trace(trace_of([[0], [1], [2]], 3, scenario)))
    assert rows[DEVICE].epsilon == rows[MODELS].epsilon
    assert rows[SYBILS].epsilon == rows[MODELS].epsilon


def sums(devices: int, variance: float = 30.0, sensitivity: float = 9.0) -> Any:
    noise = DiscreteGaussianSum(
        sensitivity=sensitivity, device_variance=variance, devices=devices, dimension=16
    )
    return Repeated(event=noise, count=3)


def part(devices: int, *, is_correlated: bool, kind: str = "devices") -> Part:
    return Part("model", kind, sums(devices), "sums", is_correlated)


def test_correlated_noise_of_one_device_protects_nothing_from_the_device() -> None:
    """Its later sums protect updates of rounds in which other devices added no noise."""
    for observer in (DEVICE, SYBILS):
        with pytest.raises(NotProtected):
            part(1, is_correlated=True).against(observer, 1 / 3)
        assert part(1, is_correlated=False).against(observer, 1 / 3) == sums(1)
    assert part(2, is_correlated=True).against(DEVICE, 0.0) == sums(1)
    assert part(1, is_correlated=True).against(OPERATOR, 0.0) == sums(1)


@pytest.mark.parametrize("is_correlated", [True, False])
def test_malicious_devices_are_rounded_up(is_correlated: bool) -> None:
    for devices in range(1, 40):
        for share in (0.0, 0.1, 0.25, 1 / 3, 0.7, 1.0):
            honest = devices - math.ceil(Fraction(str(share)) * devices)
            least = max(honest, 0 if is_correlated else 1)
            found = part(devices, is_correlated=is_correlated)
            assert found.honest(SYBILS, share) == least
            if least:
                assert found.against(SYBILS, share) == sums(least)
            else:
                with pytest.raises(NotProtected):
                    found.against(SYBILS, share)


def test_a_bound_that_falls_with_more_knowledge_is_not_stated() -> None:
    """With little noise tau of many devices exceeds what one device's own noise costs."""
    event = sums(50, 0.3, 1.0)
    models = epsilon_of(event, 1e-6).epsilon
    own = epsilon_of(sums(1, 0.3, 1.0), 1e-6).epsilon
    assert own < models
    parts = (Part("model", "local", event, "messages"),)
    found = Releases(parts, models, 1e-6, "", False, 1 / 3)
    assert found.epsilon_against(OPERATOR) == models


def test_known_draws_cost_the_amplification() -> None:
    step = Gaussian(noise_multiplier=2.0)
    drawn_event = Repeated(event=PoissonSampled(probability=0.1, event=step), count=5)
    assert without_sampling(drawn_event) == Repeated(event=step, count=5)
    assert without_sampling(Composed(events=(drawn_event, step))) == Composed(
        events=(Repeated(event=step, count=5), step)
    )
    fixed = FixedSizeSampled(devices=90, size=9, event=step)
    assert without_sampling(Repeated(event=fixed, count=5)) == Repeated(event=step, count=5)
    # Of six rounds, two apart or more, a device is in three at most.
    bands = BandFHU(bands=2)
    apart = MinSepSampled(
        strategy=bands, rounds=6, min_sep=2, probability=0.5, noise_multiplier=2.0
    )
    column = math.sqrt(sum(each**2 for each in bands.first_column(2)))
    expected = 3 * column**2 / (2 * 4.0)
    assert rho_of(without_sampling(apart)) == pytest.approx(expected, rel=1e-9)


def test_a_device_knows_its_draws_and_the_operator_of_an_enclave_does_not(tmp_path: Path) -> None:
    """So a device has the epsilon that the rules enforce without draws."""
    turns = {"kind": "cyclic_poisson", "partitions": 3, "probability": 0.2, "assignment": "equal"}
    uploads = {"window_hours": 8.0, "windows": 1, "schedule": turns}
    rounds = {"mode": "upload-then-train", "count": 6, "uploads": uploads}
    noise = {"mechanism": {"kind": "identity"}, "noise_multiplier": 4.0, "delta": 1e-8}
    free = {"timer_hours": 0.0}
    each = drawn(0, tmp_path)
    privacy = noise | {"trust": {"kind": "enclave"}}
    trace = each.run(rounds=rounds, privacy=privacy, participation=free)
    audit = audit_trace(trace)
    rows, used = rows_of(audit), audit.mechanisms[0]
    assert used.sampled is not None
    sampled_epsilon, enforced = used.sampled.epsilon or 0.0, used.enforced.epsilon or 0.0
    assert rows[MODELS].epsilon == rows[OPERATOR].epsilon == sampled_epsilon
    assert rows[DEVICE].epsilon == pytest.approx(enforced, rel=1e-9)
    assert rows[SYBILS].epsilon == rows[DEVICE].epsilon
    assert sampled_epsilon < enforced
    assert "knows its own draws" in rows[DEVICE].reason
    assert "if the enclave makes the draws" in rows[OPERATOR].reason
    assert any("makes the draws" in text for text in audit.assumptions)


def test_a_question_and_a_model_have_a_trust_each(tmp_path: Path) -> None:
    each = drawn(0, tmp_path)
    tables = asking(each)
    shared = {"kind": "devices", "least_devices": 2}
    tables["analytics"] |= {"trust": [shared, {"kind": "server"}]}
    audit = trained(each.run(**tables, privacy={"trust": {"kind": "enclave"}}), each)
    assert audit.observers is not None
    (first, second), size = audit.released, len(OBSERVERS)
    assert {first.trust, second.trust} == {
        "model enclave, question devices",
        "model enclave, question server",
    }
    of_devices = [e for e in audit.observers if e.trust.endswith("devices")]
    of_server = [e for e in audit.observers if e.trust.endswith("server")]
    assert len(of_devices) == len(of_server) == size
    assert of_server[2].protected_by == NOTHING
    # Two devices share the noise, of which one knows half.
    models, device, operator, *_ = of_devices
    assert models.epsilon == operator.epsilon
    assert (models.epsilon or 0.0) < (device.epsilon or 0.0)
    assert device.sees.startswith("the models and answers")
    assert models.name == "whoever gets the models and answers"
    table = observers_table(audit)
    assert table is not None
    assert "trust" in table.columns


def test_a_shuffle_hides_a_report_from_all_but_the_shuffler(tmp_path: Path) -> None:
    each = drawn(0, tmp_path)
    tables = asking(each)
    delta = 1e-6
    shuffled = {"kind": "shuffled", "least_devices": 2}
    tables["analytics"] |= {"delta": delta, "trust": [shuffled]}
    trace = each.run(**tables)
    audit = audit_trace(trace)
    assert audit.observers is not None
    assert audit.scenario is not None
    rows = {row.name: row for row in audit.observers}
    assert list(rows) == ["whoever gets the answers", *OBSERVERS[1:], SHUFFLER]
    assert audit.scenario.analytics is not None
    (plan,) = audit.scenario.analytics.plans(audit.scenario.rounds.least_accepted)
    assert isinstance(plan.sums, ShuffledReports)
    stated = audit.basis.stated
    assert stated is not None
    windows = next(e.windows for e in audit.answers or () if e.basis == stated.name)
    assert windows is not None

    def spent(event: Event) -> float:
        several: Any = Repeated(event=event, count=windows)  # pyright: ignore[reportArgumentType]
        return epsilon_of(several, windows * delta).epsilon

    # Of two reports in a shuffle, one that knows its own leaves none among which to hide.
    assert rows[OPERATOR].epsilon == audit.observers[0].epsilon == spent(plan.event)
    assert rows[DEVICE].epsilon == pytest.approx(spent(plan.sums.event_of(1)), rel=1e-12)
    assert rows[SHUFFLER].epsilon == pytest.approx(spent(plan.sums.report), rel=1e-7)
    assert (audit.observers[0].epsilon or 0.0) < (rows[DEVICE].epsilon or 0.0)
    assert "order" in rows[DEVICE].reason
    statement = privacy_statement(audit)
    assert "about whoever gets the answers, and the operator of the server." in statement.summary
    assert any(line.what == f"Private from {SHUFFLER}" for line in statement.lines)


def test_a_local_answer_rests_on_the_report_of_the_device(tmp_path: Path) -> None:
    each = drawn(0, tmp_path)
    tables = asking(each)
    tables["analytics"] |= {"trust": [{"kind": "local"}]}
    rows = rows_of(audit_trace(each.run(**tables)))
    assert rows[DEVICE].reason == "the noise of the device's own report"
    assert rows[DEVICE].epsilon == rows[OPERATOR].epsilon == rows[SYBILS].epsilon


def test_of_trust_models_of_one_kind_each_has_its_own_rows(tmp_path: Path) -> None:
    """The scenario's order, whichever of them the verdict is about: the one with more noise."""
    each, least = drawn(0, tmp_path), (3, 2)
    tables = asking(each)
    shared = [{"kind": "devices", "least_devices": count} for count in least]
    local = {"kind": "local"}
    tables["analytics"] |= {"trust": [local, *shared], "delta": 1e-6}
    audit = audit_trace(each.run(**tables))
    assert [[part.trust for part in found.parts] for found in audit.released] == [
        ["local"],
        ["devices"],
        ["devices"],
    ]
    assert [found.parts[0].devices for found in audit.released] == [0, *least]
    stated = audit.basis.stated
    assert stated is not None
    assert audit.observers_of_verdict[0].epsilon == stated.epsilon
    assert [found.is_stated for found in audit.released].count(True) == 1
    table, statement = observers_table(audit), privacy_statement(audit)
    assert table is not None
    lines = [line for line in statement.lines if line.what.startswith("Private from")]
    assert len(lines) == len(OBSERVERS)
    # The figure is about the first trust model whose noise devices share.
    figure = next(each for each in audit.figures() if each.name == "malicious")
    assert figure.series[0].y[0] == audit.released[1].epsilon


def test_an_unknown_epsilon_is_not_drawn() -> None:
    """Of a vocabulary by shuffled reports only the event is known, not what malicious devices cost."""
    event = sums(30)
    vocabulary = Part("vocabulary", "shuffled", event, "reports")
    both: Any = (part(30, is_correlated=False), vocabulary)
    epsilon = epsilon_of(Composed(events=(event, event)), 1e-6).epsilon
    assert malicious_devices(Releases(both, epsilon, 1e-6, "", False, 1 / 3)) is None
    assert malicious_devices(Releases(both[:1], epsilon, 1e-6, "", False, 1 / 3)) is not None


@pytest.mark.slow
def test_the_page_on_questions_has_the_figures_of_new_words() -> None:
    question = PrefixTree(branching=32, levels=3, most_keys=4, most_prefixes=4096)
    budget = Budget(math.log(3), 1e-10)
    trusts = [Server(), Enclave(), Devices(least_devices=200_000)]
    trusts += [Shuffled(least_devices=200_000), Local()]
    shown: dict[str, list[str]] = {}
    for trust in trusts:
        reports = question.plan(trust, budget).sums
        answers = Part("question", trust.kind, reports.event, "")
        if isinstance(reports, ShuffledReports):
            answers = answers._replace(shuffled=reports)
        epsilon = epsilon_of(reports.event, budget.delta).epsilon
        of_run = (epsilon, budget.delta, "", False, MALICIOUS_SHARE)
        for each in Releases((answers,), *of_run).observers():
            shown_as = "none" if each.protected_by == NOTHING else each.protected_by
            if each.epsilon is not None:
                shown_as = f"{math.ceil(1e3 * each.epsilon) / 1e3:.3f}"
            shown.setdefault(each.name, []).append(shown_as)
    page = (Path(__file__).parents[2] / "docs" / "analytics.md").read_text(encoding="utf-8")
    table = page.partition("### Who is protected from whom")[2].partition("## Errors")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    figures = {row[0].replace("a third", "a share"): row[1:] for row in rows if len(row) == 6}
    assert list(shown) == ["whoever gets the answers", *OBSERVERS[1:], SHUFFLER]
    for name, expected in shown.items():
        assert [each for each in figures[name] if each] == expected


def test_without_noise_nothing_protects(trace_of, small) -> None:
    audit = audit_trace(trace_of(PATTERNS, 4, small("privacy.mechanism={kind='none'}")))
    assert [each.protected_by for each in rows_of(audit).values()] == [*4 * [NOTHING], "encryption"]


# Where it is shown


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ((), "Nothing protects from the operator of the server: it adds the noise"),
        (ENCLAVE, "about whoever gets the models, and the operator of the server."),
        (DEVICES, "about whoever gets the models, and the operator of the server."),
        (LOCAL, "Against the operator of the server epsilon is "),
    ],
    ids=["server", "enclave", "devices", "local"],
)
def test_every_place_says_who_is_meant(keys, said, trace_of, small) -> None:
    audit = audit_trace(trace_of(PATTERNS, 4, small(*keys)))
    rows, statement = rows_of(audit), privacy_statement(audit)
    assert said in statement.summary
    if keys is LOCAL:
        assert f"epsilon is {up(rows[OPERATOR].epsilon)}." in statement.summary
    lines = {line.what: line.says for line in statement.lines}
    texts = [" ".join(" ".join(map(str, short_audit_text(audit))).split()), audit_page(audit)]
    for name, row in rows.items():
        value = row.protected_by if row.epsilon is None else up(row.epsilon)
        assert value in lines[f"Private from {name}"]
    for text in texts:
        assert "Who is it private from?" in text
        assert all(up(row.epsilon) in text for row in rows.values() if row.epsilon is not None)
        assert "who takes part, when, and who drops out" in text
    trusted = lines["Who is trusted"]
    assert {(): "server, which adds", ENCLAVE: "enclave", DEVICES: "sums", LOCAL: "add noise"}[
        keys
    ] in trusted


def test_the_figure_ends_at_the_share_of_the_row(trace_of, small, fedray_command, tmp_path) -> None:
    patterns = [[device % 2, 2 + device % 2] for device in range(40)]
    scenario = small(*DEVICES, "rounds.report_goal=20", "privacy.trust.malicious_share=0.25")
    trace = trace_of(patterns, 4, scenario)
    audit = audit_trace(trace)
    figure = malicious_devices(audit.released[0])
    assert figure is not None
    (line,) = figure.series
    rows = rows_of(audit)
    assert (line.x[0], line.x[-1]) == (0.0, 25.0)
    assert line.x.tolist() == [5.0 * each for each in range(6)]
    assert line.y[0] == rows[OPERATOR].epsilon
    assert line.y[-1] == rows[SYBILS].epsilon
    assert (line.y[1:] > line.y[:-1]).all()
    (beyond,) = figure.marks
    assert (beyond.at, beyond.until, beyond.text) == (25.0, 100.0, "none")
    shown = next(each for each in audit.figures() if each.name == "malicious")
    assert "small" in shown.subject.population
    assert (shown.subject.condition, shown.subject.unit) == ("trust devices", "device")
    code, *_ = fedray_command("audit", str(trace.path), "--figures", str(tmp_path / "figures"))
    assert code == 0
    assert {"malicious.svg", "malicious.csv"} <= {
        each.name for each in (tmp_path / "figures").iterdir()
    }
    server = audit_trace(trace_of(patterns, 4, small()))
    assert not [each for each in server.figures() if each.name == "malicious"]


def test_a_point_of_the_figure_counts_no_device_too_many() -> None:
    """Of thirty devices 7 / 30 as a float is slightly more than seven."""
    event = sums(30)
    epsilon = epsilon_of(event, 1e-6).epsilon
    found = Releases((part(30, is_correlated=True),), epsilon, 1e-6, "", False, 0.5)
    figure = malicious_devices(found)
    assert figure is not None
    (line,) = figure.series
    assert line.x.tolist() == pytest.approx([100 * each / 30 for each in range(16)])
    for malicious, shown in enumerate(line.y.tolist()):
        assert shown == epsilon_of(sums(30 - malicious), 1e-6).epsilon


# Claims


@pytest.fixture
def log(tmp_path: Path) -> Any:
    rows = "".join(f"d{d},{r}\n" for d, pattern in enumerate(PATTERNS) for r in pattern)
    (tmp_path / "log.csv").write_text("device,round\n" + rows)
    return import_log(tmp_path / "log.csv", "device", "round", 4, tmp_path / "log")


def claim_text(trust: str, mechanism: str = "identity") -> str:
    return (
        f'mechanism = "{mechanism}"\nnoise_multiplier = 4.0\nmin_sep = 1\ntrust = {{ {trust} }}\n'
    )


def test_a_claim_about_a_log_may_state_its_trust(log, tmp_path: Path, fedray_command) -> None:
    file = tmp_path / "claim.toml"
    file.write_text(claim_text('kind = "local", parameters = 1000, scale = 4096'))
    audit = audit_trace(log, claim=read_claim(file))
    rows = rows_of(audit)
    # Four participations at noise 4; the models have that of three devices.
    delta = read_claim(file).delta
    assert rows[OPERATOR].epsilon == pytest.approx(epsilon_by_hand(4 / 32, delta), rel=1e-4)
    assert rows[MODELS].epsilon == pytest.approx(epsilon_by_hand(4 / 96, delta), rel=1e-4)
    assert rows[MODELS].epsilon == audit.supported_epsilon
    code, out, _ = fedray_command("audit", str(log.path), "--claim", str(file))
    assert code == 0
    assert "Who is it private from?" in out
    assert "Not checked: mechanism, noise multiplier, trust" in " ".join(out.split())
    # Without one, nothing is known of who added the noise.
    silent_claim = read_claim(file).model_copy(update={"trust": None})
    bare = audit_trace(log, claim=silent_claim)
    assert bare.observers is None
    assert "server, which adds the noise, is trusted" in " ".join(bare.assumptions)


def test_devices_of_a_log_add_the_claimed_noise_in_the_round_with_the_fewest(log) -> None:
    trust = {"kind": "devices", "parameters": 1000, "scale": 4096}
    noise = {"mechanism": {"kind": "identity"}, "noise_multiplier": 4.0, "min_sep": 1}
    audit = audit_trace(log, claim=Claim.model_validate(noise | {"trust": trust}))
    rows, delta = rows_of(audit), audit.mechanisms[0].claimed.delta
    assert rows[OPERATOR].epsilon == pytest.approx(epsilon_by_hand(4 / 32, delta), rel=1e-4)
    assert rows[DEVICE].epsilon == pytest.approx(epsilon_by_hand(4 / 32 * 3 / 2, delta), rel=1e-4)
    assert any("3 of 3" in text for text in audit.assumptions)


@pytest.mark.parametrize(
    ("trust", "mechanism", "reason"),
    [
        ('kind = "local", parameters = 9', "tree", "a device adds its noise to one update"),
        ('kind = "devices", parameters = 9', "tree", "accounted for in runs only"),
        ('kind = "devices"', "identity", "parameters"),
        ('kind = "nobody"', "identity", "nobody"),
        ('kind = "server", share = 1', "identity", "share"),
    ],
)
def test_a_trust_without_sense_is_refused_in_one_line(
    trust: str, mechanism: str, reason: str, log, tmp_path: Path, fedray_command
) -> None:
    (tmp_path / "claim.toml").write_text(claim_text(trust, mechanism))
    given = ("--claim", str(tmp_path / "claim.toml"))
    code, _, err = fedray_command("audit", str(log.path), *given)
    assert code == 2
    assert reason in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "claimed",
    [
        {"mechanism": {"kind": "identity"}, "noise_multiplier": 20.0},
        {"mechanism": {"kind": "identity"}, "noise_multiplier": 6.5},
        {"mechanism": {"kind": "tree"}, "noise_multiplier": 7.0},
    ],
    ids=["more noise", "less noise", "another mechanism"],
)
def test_a_claim_of_other_noise_changes_no_figure_of_a_run(
    trace_of, small, claimed: dict[str, Any]
) -> None:
    """Neither what devices spent nor what observers have, in the table, the findings, the page and the statement."""
    rules = (
        "training.enabled=true",
        "participation.timer_hours=0",
        "participation.max_participations=2",
    )
    trace = trace_of(PATTERNS, 4, small(IDENTITY, *rules))
    delta = 1e-6
    own = audit_trace(trace, delta=delta)
    spent = own.mechanisms[0].observed.epsilon
    assert spent is not None
    claim = Claim.model_validate(claimed | {"epsilon": 2.0 * spent, "delta": delta})
    audit = audit_trace(trace, claim=claim)
    used = audit.mechanisms[0]
    assert (used.strategy.kind, used.noise_multiplier, used.is_own) == ("identity", 7.0, True)
    assert used.observed == own.mechanisms[0].observed
    assert audit.observers is not None
    assert own.observers is not None
    assert [each.epsilon for each in audit.observers] == [each.epsilon for each in own.observers]
    found = {each.statement: each for each in audit.findings}
    assert found["epsilon"].found == spent
    assert f"the devices of this trace spent {up(spent)}" in found["epsilon"].explanation
    is_other = claimed["noise_multiplier"] > 7.0 or claimed["mechanism"]["kind"] == "tree"
    assert audit.claim_holds is not is_other
    if is_other:
        assert "The claim does not hold" in audit.verdict
    # What the rules and the noise of the run ensure may be published, whatever is claimed.
    assert audit.supported_epsilon is not None
    assert audit.supported_epsilon >= spent
    statement = privacy_statement(audit).summary
    assert "another mechanism or noise" not in statement
    assert f"({up(audit.supported_epsilon)}, " in statement


def test_figures_at_noise_that_was_not_added_are_published_if_it_is_added(trace_of, small) -> None:
    rules = (
        "training.enabled=true",
        "participation.timer_hours=0",
        "participation.max_participations=2",
    )
    trace = trace_of(PATTERNS, 4, small(IDENTITY, *rules))
    audit = audit_trace(trace, noise_multiplier=9.0)
    assert audit.supported_epsilon is None
    assert {row[-1] for row in guarantees_table(audit).rows} == {"no", "if added"}


def test_a_claim_about_a_run_is_held_against_its_trust(trace_of, small) -> None:
    scenario = small(IDENTITY, "privacy.trust={kind='enclave'}")
    trace = trace_of(PATTERNS, 4, scenario)
    noise = {"mechanism": {"kind": "identity"}, "noise_multiplier": 7.0}
    for kind, holds in (("enclave", True), ("server", False)):
        claim = Claim.model_validate(noise | {"trust": {"kind": kind}})
        audit = audit_trace(trace, claim=claim)
        assert audit.claim_holds is holds
        # The table is that of the run, whatever is claimed.
        assert rows_of(audit)[OPERATOR].trust == "enclave"
    assert "trust is enclave, not server" in audit.verdict
    said = " ".join(" ".join(map(str, short_audit_text(audit))).split())
    assert "may be published: none, because the run has the trust enclave." in said


# Budgets


def test_a_budget_counts_what_is_spent_against_its_observer(trace_of, small, tmp_path) -> None:
    """Two messages at noise 4 are rho 2 / 32 against the operator, and a third of it for the sum of three."""
    scenario = small(*LOCAL, "privacy.noise_multiplier=4.0", "rounds.report_goal=3")
    audit = audit_trace(trace_of(PATTERNS, 4, scenario))
    start, spent = date(2026, 10, 1), {}
    for observer in ("models", "operator"):
        ledger = Ledger.create(tmp_path / observer, 90.0, 1e-6, "year", "device", observer)
        charged = ledger.charge([audit], start)
        (window,) = charged.windows
        spent[observer] = window.recorded
        words = {"models": "whoever gets the models", "operator": "the operator of the server"}
        assert charged.observer == charged.to_json()["observer"] == observer
        assert f"against {words[observer]}" in charged.tables()[0].title
        assert f"against {words[observer]}" in charged.statement()
    assert spent["operator"] == pytest.approx(2 / 32, rel=1e-9)
    assert spent["models"] == pytest.approx(2 / 96, rel=1e-9)


def test_a_budget_against_the_operator_takes_no_run_that_it_is_trusted_with(
    trace_of, small, tmp_path, fedray_command
) -> None:
    path = tmp_path / "ledger"
    made = ("--epsilon", "9", "--delta", "1e-6", "--observer", "operator")
    assert fedray_command("budget", str(path), *made)[0] == 0
    ledger = Ledger.open(path)
    start = date(2026, 10, 1)
    server = small(IDENTITY)
    with pytest.raises(InputError, match="nothing protects from it"):
        ledger.charge([audit_trace(trace_of(PATTERNS, 4, server))], start)
    with pytest.raises(InputError, match="nothing protects from it"), reserved(path, server, start):
        pytest.fail("it was reserved")
    assert len(Ledger.open(path).entries) == 1
    enclave = small(IDENTITY, *ENCLAVE)
    (window,) = ledger.charge([audit_trace(trace_of(PATTERNS, 4, enclave))], start).windows
    assert window.recorded == pytest.approx(2 / (2 * 49), rel=1e-9)
    code, _, err = fedray_command("budget", str(tmp_path / "x"), *made[:4], "--observer", "nobody")
    assert (code, "observer" in err) == (2, True)


def test_a_reservation_of_local_noise_counts_each_message(small, tmp_path: Path) -> None:
    """Against the operator it needs as many times the rho of the models as a round has devices."""
    scenario = small(*LOCAL, "participation.timer_hours=0.0", "participation.max_participations=2")
    start, held = date(2026, 10, 1), {}
    for observer in ("models", "operator"):
        path = Ledger.create(tmp_path / observer, 900.0, 1e-6, "year", "device", observer).path
        with reserved(path, scenario, start):
            held[observer] = Ledger.open(path).windows[0].reserved
    goal = scenario.rounds.report_goal
    assert held["operator"] == pytest.approx(2 / (2 * 49), rel=1e-9)
    assert held["operator"] / held["models"] == pytest.approx(goal, rel=1e-9)


def test_a_log_is_charged_against_the_operator_only_with_a_trust(log, tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year", "device", "operator")
    noise = {"mechanism": {"kind": "identity"}, "noise_multiplier": 4.0}
    bare = audit_trace(log, claim=Claim.model_validate(noise))
    with pytest.raises(InputError, match=r"claim\.trust"):
        ledger.charge([bare], date(2026, 10, 1))
    trust = {"kind": "local", "parameters": 1000, "scale": 4096}
    stated = audit_trace(log, claim=Claim.model_validate(noise | {"trust": trust}))
    (window,) = ledger.charge([stated], date(2026, 10, 1)).windows
    assert window.recorded == pytest.approx(2 / 32, rel=1e-9)


def test_documents_have_the_rows(trace_of, small) -> None:
    audit = audit_trace(trace_of(PATTERNS, 4, small(*DEVICES)))
    document = json.loads(json.dumps(audit.to_json()))["observers"]
    assert [each["name"] for each in document] == [*OBSERVERS]
    assert document[-1]["name"] == NETWORK
    keys = {"name", "trust", "sees", "protected_by", "epsilon", "delta", "reason", "assumptions"}
    assert all(set(each) == keys for each in document)
