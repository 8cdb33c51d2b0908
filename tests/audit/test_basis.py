"""One basis: statement, verdict, page, JSON, terminal and ledger give one figure for every shape of run, or all say that there is none."""

import os
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from drawn_runs import HERE, ONLY_MODELS, QUESTION, Drawn, drawn, paid, words

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.calibration import calibrate_trace
from fedray.audit.claims import Claim, read_claim
from fedray.audit.ledger import Ledger
from fedray.audit.privacy_statement import privacy_statement
from fedray.audit.several_tasks import audit_tasks
from fedray.base.errors import InputError, ScenarioError
from fedray.base.rounding import given_delta, up
from fedray.imports.importer import import_log
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.sampled import sampled_in_turn
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity, Tree
from fedray.report.page import audit_page
from fedray.report.terminal import short_audit_text
from fedray.runs.calibrated import calibrated
from fedray.runs.learning import scenario_to_train
from fedray.runs.simulation import simulate
from fedray.scenario import Scenario, SeveralTasks

FULL = "FEDRAY_ALL_SEEDS" in os.environ
STATED = re.compile(r"\(([\d.]+), ([\d.e-]+)\)-differential privacy")
SAID = re.compile(r"Epsilon ([\d.]+) at delta ([\d.e-]+) [^:]*?may be published \(")
PUBLISHED = re.compile(r"Epsilon that may be published: ([\d.]+) at delta ([\d.e-]+)")
HEADLINE = re.compile(r"<b>&epsilon; = ([\d.]+)</b>")


def trained(trace: Any, each: Drawn) -> Audit:
    """The audit of a training on a trace, whose sample may be all devices of a round or some."""
    own = Scenario.from_tables(trace.scenario, directory=trace.path)
    sample = min(each.pick(10, 20), own.rounds.report_goal)
    data = (
        () if own.data.kind == "parquet" else ("data.kind=points", "training.task.kind=quadratic")
    )
    keys = ("training.enabled=true", f"training.cohort_sample={sample}", *data)
    return audit_trace(trace, scenario=own.with_overrides(*keys))


def model(each: Drawn) -> Audit:
    trace = each.run()
    return trained(trace, each) if each.pick(True, False) else audit_trace(trace)


def other_noise(each: Drawn) -> Audit:
    return audit_trace(each.run(), float(each.rng.uniform(0.5, 9)))


def silent(each: Drawn) -> Audit:
    return audit_trace(each.run(privacy={"mechanism": {"kind": "none"}}))


def asking(each: Drawn) -> dict[str, Any]:
    shared = {"kind": "devices", "least_devices": 2}
    trust = each.pick([{"kind": "server"}], [shared], [{"kind": "local"}, {"kind": "enclave"}])
    return {
        "participation": {"timer_hours": each.pick(0.0, 30.0)},
        "rounds": {
            "mode": "upload-then-train",
            "count": 3,
            "uploads": {"window_hours": 24.0, "windows": 3, "schedule": {"kind": "all"}},
        },
        "analytics": {
            "values": {"kind": "numbers", "mean": 1.0},
            "question": {"kind": "mean", "low": -20.0, "high": 20.0},
            "trust": trust,
            "epsilon": float(each.rng.uniform(0.1, 2)),
            "delta": each.pick(1e-8, 1e-7),
        },
    }


def question(each: Drawn) -> Audit:
    return audit_trace(each.run(**asking(each)))


def both(each: Drawn) -> Audit:
    return trained(each.run(**asking(each)), each)


def question_of_a_silent_model(each: Drawn) -> Audit:
    trace = each.run(**asking(each), privacy={"mechanism": {"kind": "none"}})
    return trained(trace, each)


def vocabulary(each: Drawn) -> Audit:
    owners = each.pick({}, {"owners": {"mean_devices": 1.3, "most_devices": 3}})
    return audit_trace(each.run(data=words(each, each.rng.uniform(0.1, 4)), population=owners))


def vocabulary_and_question(each: Drawn) -> Audit:
    return trained(each.run(data=words(each, each.rng.uniform(0.1, 4)), **asking(each)), each)


def persons(each: Drawn) -> Audit:
    owners = {"mean_devices": 1.3, "most_devices": 3}
    return audit_trace(each.run(population={"owners": owners}))


def several_tasks(each: Drawn) -> Audit:
    tasks = {"a": {"weight": 1.0}, "b": {"weight": 2.0, "privacy": {"noise_multiplier": 3.0}}}
    several = SeveralTasks.from_tables({**each.tables, "tasks": tasks})
    run = simulate(several, HERE, each.folder / "t")
    return audit_tasks(run).audits[each.pick("a", "b")]


def stored(each: Drawn, *schedules: dict[str, Any]) -> Audit:
    uploads = {"window_hours": 8.0, "windows": each.pick(1, 2), "schedule": each.pick(*schedules)}
    rounds = {"mode": "upload-then-train", "count": 6, "uploads": uploads}
    return audit_trace(each.run(rounds=rounds, participation={"timer_hours": 0.0}))


def sampled(each: Drawn) -> Audit:
    poisson = {"kind": "poisson", "probability": each.pick(0.05, 0.3)}
    turns = {"kind": "cyclic_poisson", "partitions": 3, "probability": 0.2}
    return stored(each, poisson, {**turns, "assignment": each.pick("equal", "independent")})


def stored_uploads(each: Drawn) -> Audit:
    return stored(each, {"kind": "cyclic", "min_sep": 2}, {"kind": "cyclic", "min_sep": 3})


def filtered(each: Drawn) -> Audit:
    stop = {"stop_at": {"epsilon": each.pick(6.0, 15.0)}, "at_limit": "exclude"}
    noise = {"noise_multiplier": each.pick(2.0, 3.0)}
    return audit_trace(each.run(privacy=stop | noise, participation={"timer_hours": 0.3}))


def buffered(each: Drawn) -> Audit:
    buffer = {"concurrency": 40, "max_staleness": each.pick(1, 3)}
    rounds = {"mode": "buffered", "buffer": buffer, "look_ahead_minutes": 5.0}
    return audit_trace(each.run(rounds=rounds))


def noise_of_devices(each: Drawn) -> Audit:
    mechanism = each.pick({"kind": "identity"}, {"kind": "toeplitz", "coefficients": [1.0, 0.5]})
    trust = {"kind": "devices", "parameters": 1000}
    return audit_trace(each.run(privacy={"mechanism": mechanism, "trust": trust}))


def log(each: Drawn) -> Audit:
    has_times, has_owners = each.pick(True, False), each.pick(True, False)
    rows = "".join(
        f"d{device},{round_},2026-01-{1 + round_:02d}T0{device % 9}:00:00Z,p{device // 2}\n"
        for round_ in range(9)
        for device in each.rng.permutation(20)[:6].tolist()
    )
    (each.folder / "log.csv").write_text("device,round,time,owner\n" + rows)
    options: dict[str, Any] = {"time_column": "time"} if has_times else {}
    options |= {"owner_column": "owner"} if has_owners else {}
    trace = import_log(each.folder / "log.csv", "device", "round", 9, each.folder / "t", **options)
    strategy = each.pick(Identity(), Tree())
    if each.pick(True, False):
        return audit_trace(trace, 2.0, mechanism=strategy)
    limits = {"min_sep": each.pick(None, 1, 2, 4), "timer_hours": each.pick(None, 1.0, 100.0)}
    claim = Claim(mechanism=strategy, noise_multiplier=2.0, **limits, epsilon=each.pick(None, 9.0))
    return audit_trace(trace, claim=claim)


def claim_of_a_run(each: Drawn) -> Audit:
    privacy = each.tables["privacy"]
    trace = each.run()
    more = trace.committed_rounds + each.pick(0, 0, 7)
    own = Scenario.from_tables(trace.scenario, directory=trace.path).privacy.needed_strategy()
    claim = Claim(
        mechanism=each.pick(own, Tree()),
        noise_multiplier=each.pick(privacy["noise_multiplier"], 30.0),
        rounds=more,
        epsilon=float(each.rng.uniform(1, 60)),
        delta=privacy["delta"],
    )
    return audit_trace(trace, claim=claim)


SHAPES: tuple[Callable[[Drawn], Audit], ...] = (
    model,
    question,
    both,
    vocabulary,
    persons,
    several_tasks,
    sampled,
    filtered,
    buffered,
    stored_uploads,
    log,
    other_noise,
    silent,
    question_of_a_silent_model,
    vocabulary_and_question,
    noise_of_devices,
    claim_of_a_run,
)
CASES = [*range(500 if FULL else len(SHAPES))]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{SHAPES[case % len(SHAPES)].__name__}-{case}"
)
def test_every_place_has_the_figure_of_the_verdict_or_says_that_there_is_none(
    case: int, tmp_path: Path
) -> None:
    each = drawn(case, tmp_path)
    audit = SHAPES[case % len(SHAPES)](each)
    epsilon = audit.supported_epsilon
    try:
        statement = privacy_statement(audit).summary
    except InputError as error:
        statement = str(error)
    page = HEADLINE.search(audit_page(audit))
    terminal = " ".join(" ".join(map(str, short_audit_text(audit))).split())
    stated = STATED.search(statement)
    said = (PUBLISHED if audit.findings else SAID).search(terminal)
    charge = charged(audit, tmp_path)
    found = audit.basis.guarantee
    if epsilon is None:
        assert page is None
        if audit.is_of_run or audit.findings:
            assert said is None
        no = ("This may not be published", "The run had another mechanism or noise", "If ")
        statement = re.sub(r"^The claim [a-z ]+\. ", "", statement)
        assert stated is None or statement.startswith(no)
        assert charge is None or not charge.may_rest_on or not audit.is_of_run
        return
    assert found is not None
    expected = (up(epsilon), given_delta(found.delta))
    assert stated is not None
    assert said is not None
    assert page is not None
    assert stated.groups() == said.groups() == expected
    assert page[1] == expected[0]
    if audit.answers:
        assert audit.supported_delta == found.delta
        assert all(
            epsilon >= row.epsilon
            for row in audit.answers
            if row.epsilon is not None and row.may_rest_on and row.delta <= found.delta
        )
    if charge is None or audit.findings:
        return
    if audit.answers:
        # Answers and models compose in a ledger as in the verdict.
        assert charge.may_rest_on
        assert charge.epsilon == pytest.approx(epsilon, rel=1e-6)
        return
    # A ledger adds up rho, of which none is proven for samples.
    used = audit.mechanisms[0]
    assert charge.may_rest_on
    known = found if found.rho is not None else used.enforced
    assert charge.epsilon == pytest.approx(known.epsilon, rel=1e-6)
    assert charge.epsilon >= epsilon * (1 - 1e-6)


def charged(audit: Audit, folder: Path) -> Any:
    """The year of a ledger that accepts the audit, at its delta; else None."""
    if audit.basis.stated is None:
        return None
    delta = audit.basis.stated.delta
    ledger = Ledger.create(folder / "ledger", 1e6, delta, "year")
    try:
        (found,) = ledger.charge([audit], date(2026, 1, 1)).windows
    except InputError:
        return None
    return found


def test_a_statement_of_a_model_with_a_question_states_both_at_their_deltas(
    tmp_path: Path,
) -> None:
    """Three windows of (2, 1e-8) and three rounds of noise 4: 8.1763 at 4e-8, where the model has 2.3199 at 1e-8."""
    each = drawn(0, tmp_path)
    tables = asking(each) | QUESTION
    tables["analytics"] |= {"trust": [{"kind": "server"}], "epsilon": 2.0, "delta": 1e-8}
    audit = trained(each.run(**tables), each)
    statement = privacy_statement(audit)
    lines = {line.what: line.says for line in statement.lines}
    assert "(8.1763, 4e-08)-differential privacy" in statement.summary
    assert "one device and all its updates, and its answers" in statement.summary
    assert (
        "enforced (the model only): rho 0.093750, epsilon 2.3199" in lines["The other guarantees"]
    )
    assert lines["Unit of privacy"].startswith("one device and all its updates. The unit of the")
    assert "zero-out" in lines["Adjacency"]
    assert "replaced by an empty one" in lines["Adjacency"]
    assert "Trust model server" in lines["Who is trusted"]
    assert "the answer of each window" in lines["What is released"]


def test_a_statement_with_a_private_vocabulary_includes_what_it_cost(tmp_path: Path) -> None:
    """(4, 2e-8) and one contribution at noise 4: 5.2664 at 3e-8, where the model has 1.2927 at 1e-8."""
    owners = {"owners": {"mean_devices": 1.3, "most_devices": 3}}
    _, trace = paid(tmp_path, population=owners)
    audit = audit_trace(trace)
    statement = privacy_statement(audit)
    assert "(5.2664, 3e-08)-differential privacy" in statement.summary
    assert any("found by a private question" in line.says for line in statement.lines)
    # A person spends on both too, by group privacy, and not what the model shows by itself.
    (of_person,) = audit.basis.of_person
    (line,) = (each for each in statement.lines if each.what == "A person instead of a device")
    said = f"of all that was released: epsilon {up(of_person.epsilon or 0)} at delta"
    assert said in line.says


def test_no_target_is_met_on_a_trace_by_the_model_only(tmp_path: Path, fedray_command) -> None:
    """Whatever meets targets refuses what the noise of a model does not cover, as before a run."""
    _, trace = paid(tmp_path)
    privacy = {"target_epsilon": 3.0, "mechanism": {"kind": "identity"}, "delta": 1e-8}
    target = Scenario.from_tables({**trace.scenario, "privacy": privacy}, directory=trace.path)
    sweep = tmp_path / "sweep.toml"
    sweep.write_text('name = "s"\nvary = {"privacy.target_epsilon" = [3.0]}\nseeds = 1\n')
    for attempt in (
        lambda: calibrated(target),
        lambda: calibrated(scenario_to_train(trace, target), trace),
        lambda: calibrate_trace(trace, epsilon=3.0),
        lambda: calibrate_trace(trace, rho=3.0),
    ):
        with pytest.raises(InputError, match=ONLY_MODELS):
            attempt()
    given = ("--set", "privacy.target_epsilon=3", "--out", str(tmp_path / "trained"))
    code, _, err = fedray_command("train", str(trace.path), *given)
    assert (code, ONLY_MODELS in err) == (2, True)


def test_budgets_and_tasks_take_no_private_vocabularies(tmp_path: Path) -> None:
    each = drawn(0, tmp_path)
    budget = {**each.tables["privacy"], "stop_at": {"epsilon": 500.0}}
    with pytest.raises(ScenarioError, match="stop_at: the budget counts updates of a model"):
        Scenario.from_tables({**each.tables, "data": words(each, 1.0), "privacy": budget}, directory=tmp_path)  # fmt: skip
    tables = {**each.tables, "data": words(each, 1.0), "tasks": {"a": {}, "b": {}}}
    with pytest.raises(ScenarioError, match="vocabulary_file is private"):
        SeveralTasks.from_tables(tables, directory=tmp_path)


def test_a_claim_about_more_rounds_is_judged_by_their_turns(tmp_path: Path) -> None:
    """Six rounds of three partitions are two turns of a device, 60 rounds are 20."""
    each = drawn(0, tmp_path)
    turns = {"kind": "cyclic_poisson", "partitions": 3, "probability": 0.2, "assignment": "equal"}
    uploads = {"window_hours": 8.0, "windows": 1, "schedule": turns}
    rounds = {"mode": "upload-then-train", "count": 6, "uploads": uploads}
    trace = each.run(rounds=rounds, **QUESTION)
    own = audit_trace(trace)
    assert "(sampled, only if the draws stay secret)" in own.verdict
    assert own.supported_epsilon is not None
    claim = Claim(
        mechanism=Identity(), noise_multiplier=4.0, rounds=60, delta=1e-8,
        epsilon=own.supported_epsilon,
    )  # fmt: skip
    longer = audit_trace(trace, claim=claim)
    event = sampled_in_turn(Identity(), MinSep(60, 3, 20), 0.2, 4.0)
    assert not longer.claim_holds
    assert longer.supported_epsilon == epsilon_of(event, 1e-8).epsilon
    assert "only if the draws stay secret" in longer.supported_by
    assert "at most 20 turns" in longer.supported_by
    holds = claim.model_copy(update={"epsilon": longer.supported_epsilon})
    assert audit_trace(trace, claim=holds).claim_holds
    assert audit_trace(trace, claim=claim.model_copy(update={"rounds": 6})).claim_holds


def test_a_filter_supports_no_claim_about_more_rounds_than_it_counted(tmp_path: Path) -> None:
    each = drawn(0, tmp_path)
    stop = {"stop_at": {"epsilon": 6.0}, "at_limit": "exclude", "noise_multiplier": 2.0}
    trace = each.run(privacy=stop, participation={"timer_hours": 0.3, "max_participations": None})
    n, delta = trace.committed_rounds, each.tables["privacy"]["delta"]
    audits = [
        audit_trace(
            trace,
            claim=Claim(
                mechanism=Identity(), noise_multiplier=2.0, rounds=rounds, epsilon=6.0, delta=delta
            ),
        )
        for rounds in (n, n + 50)
    ]
    assert [audit.claim_holds for audit in audits] == [True, False]
    assert [audit.mechanisms[0].filtered.may_rest_on for audit in audits] == [True, False]


def test_a_broken_limit_of_a_log_with_owners_is_corrected_for_persons_too(
    tmp_path: Path, fedray_command
) -> None:
    rows = "".join(f"d{n % 7},{n // 3},p{n % 7 // 2}\n" for n in range(27))
    (tmp_path / "log.csv").write_text("device,round,owner\n" + rows)
    log = import_log(
        tmp_path / "log.csv", "device", "round", 9, tmp_path / "t", owner_column="owner"
    )
    text = 'mechanism = "tree"\nnoise_multiplier = 7.0\nmin_sep = 8\nepsilon = 0.1\n'
    (tmp_path / "claim.toml").write_text(text)
    options = ("--claim", str(tmp_path / "claim.toml"), "--statement", str(tmp_path / "s"))
    code, out, _ = fedray_command("audit", str(log.path), *options)
    assert (code, "The claim does not hold" in out) == (1, True)
    found = audit_trace(log, claim=read_claim(tmp_path / "claim.toml"))
    lines = {line.what: line.says for line in privacy_statement(found).lines}
    person = found.mechanisms[0].person
    assert person is not None
    says = lines["A person instead of a device"]
    assert f"corrected: rho {up(person.named('corrected').rho, 6)}" in says


def test_a_training_ends_with_its_verdict(tmp_path: Path, fedray_command) -> None:
    each = drawn(0, tmp_path)
    trace = each.run()
    keys = ("training.cohort_sample=5", "data.kind=points", "training.task.kind=quadratic")
    given = [word for key in keys for word in ("--set", key)]
    code, out, _ = fedray_command("train", str(trace.path), *given, "--out", str(tmp_path / "o"))
    assert code == 0
    said = " ".join(out.split())
    assert all(each in said for each in audit_trace(trace).verdict.split(". "))
