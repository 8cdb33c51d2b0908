"""The privacy statement: every line of the checklist, with the figures of the guarantee that it names, and nothing it cannot know."""

import json
import re
from pathlib import Path

import pytest

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.basis import weak_text
from fedray.audit.claims import Claim
from fedray.audit.observers import OBSERVERS
from fedray.audit.privacy_statement import UNSEEN, Line, Statement, privacy_statement
from fedray.base.errors import InputError
from fedray.base.rounding import up
from fedray.imports.importer import import_log
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Tree
from fedray.report.audits import guarantees_table
from fedray.report.page import audit_page
from fedray.report.terminal import audit_text
from fedray.trace.imported import ImportedTrace

PATTERNS = [[0, 3, 6], [1, 4], [2, 5]]
CHECKLIST = [
    "Unit of privacy",
    "Adjacency",
    "What is released",
    "Who is trusted",
    "Mechanism",
    "Clip norm",
    "Noise multiplier",
    "Rounds",
    "Participation (enforced)",
    "Other participation",
    "Sampling",
    "rho (zCDP)",
    "mu (Gaussian DP)",
    "(epsilon, delta)",
    "Best attack",
    "What the figures are a statement about",
    "The other guarantees",
    *(f"Private from {each}" for each in OBSERVERS),
    "Tuning",
    "Evaluation data",
    "Not covered, and assumed",
    "Digests",
    "Versions",
]


@pytest.fixture
def trace(trace_of, small):
    return trace_of(
        PATTERNS,
        7,
        small(
            "participation.timer_hours=0.0694",
            "privacy.delta=1e-6",
            'privacy.mechanism={kind = "tree"}',
        ),
    )


@pytest.fixture
def log(tmp_path: Path) -> ImportedTrace:
    rows = "".join(
        f"user-{device},{index}\n" for device, pattern in enumerate(PATTERNS) for index in pattern
    )
    (tmp_path / "log.csv").write_text("device,round\n" + rows)
    return import_log(tmp_path / "log.csv", "device", "round", 7, tmp_path / "log")


def test_a_statement_follows_the_checklist_and_states_what_was_enforced(trace) -> None:
    audit = audit_trace(trace)
    lines = {line.what: line for line in privacy_statement(audit).lines}
    assert list(lines) == CHECKLIST
    enforced = audit.mechanisms[0].enforced
    assert lines["rho (zCDP)"].says == up(enforced.rho, 6)
    assert lines["(epsilon, delta)"].says == f"({up(enforced.epsilon)}, 1e-06)"
    assert (
        "even if participation depends on the released models"
        in lines["What the figures are a statement about"].evidence
    )
    assert all(line.evidence for line in lines.values())


def test_a_statement_begins_with_a_paragraph_and_ends_with_what_limits_it(trace, log) -> None:
    """A figure that is no guarantee says so first, and wherever it stands."""
    enforced = privacy_statement(audit_trace(trace))
    spent = enforced.to_markdown().split("## Not covered, and assumed")[0]
    assert enforced.summary.startswith("A deployment with these rules and full noise would have (")
    assert "Participation is enforced: " in enforced.summary
    assert spent.count("\n* ") == 0
    other = privacy_statement(audit_trace(trace, noise_multiplier=9.0)).summary
    assert other.startswith(
        "The run had another mechanism or noise. A deployment with these rules and full noise would "
    )
    claim = Claim.model_validate({"mechanism": {"kind": "tree"}, "noise_multiplier": 7.0})
    claimed = privacy_statement(audit_trace(log, claim=claim)).summary
    assert claimed.startswith(
        "If this noise was added and min-sep 1 and at most 7 participations were"
    )
    observed = privacy_statement(audit_trace(log, 7.0, mechanism=Tree()))
    assert observed.summary.startswith("This may not be published as a guarantee: ")
    lines = {line.what: line.says for line in observed.lines}
    for name in ("rho (zCDP)", "mu (Gaussian DP)", "(epsilon, delta)"):
        assert lines[name].endswith(" (observed)")


@pytest.mark.parametrize(
    ("sample", "begins"),
    [
        (200, "The models after 7 rounds of this simulation have ("),
        (100, "A deployment with these rules and full noise would have ("),
    ],
)
def test_a_statement_does_not_promise_what_a_model_of_a_sample_lacks(
    trace_of, small, sample: int, begins: str
) -> None:
    """A round accepts 200 devices; of 100 that train, the noise is scaled down."""
    value = small(
        "training.enabled=true",
        f"training.cohort_sample={sample}",
        "participation.timer_hours=0.0694",
        "privacy.mechanism.kind=tree",
    )
    audit = audit_trace(trace_of(PATTERNS, 7, value))
    found = privacy_statement(audit)
    assert found.summary.startswith(begins)
    said = "Epsilon is that of the deployment simulated; the model of this simulation, trained on 100 of 200 devices a round, has none."
    assert (said in audit.verdict) == (sample == 100)
    says = any("own model has no such guarantee" in line.says for line in found.lines)
    assert says == (sample == 100)


def lines_of(trace, **given) -> dict[str, Line]:
    """The lines of a trace's statement by name; the first of each name."""
    lines = privacy_statement(audit_trace(trace, **given)).lines
    return {line.what: line for line in reversed(lines)}


ADAPTIVE = ("privacy.mechanism={kind='identity'}", "privacy.clipping.kind=adaptive")


def test_a_statement_with_adaptive_clipping_says_that_counts_are_released(trace_of, small) -> None:
    """And how a unit that is zeroed out is counted; at other noise the figures cover sums only."""
    plain = lines_of(trace_of(PATTERNS, 7, small(ADAPTIVE[0])))
    assert plain["What is released"].says == "the model after each of 7 rounds"
    assert "counts" not in plain["Adjacency"].says
    trace = trace_of(PATTERNS, 7, small(*ADAPTIVE))
    lines = lines_of(trace)
    assert lines["What is released"].says == (
        "the model after each of 7 rounds, and the noised count of short updates of each"
    )
    assert "zeroed out counts as one half" in lines["Adjacency"].says
    of_sums = lines_of(trace, noise_multiplier=5.0)["What is released"].says
    assert of_sums.endswith("counts of short updates, which these figures do not cover")
    limits = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    assert "a unit that is zeroed out counts as one half" in " ".join(limits.split())


@pytest.mark.parametrize(
    ("rules", "rests_on_times"),
    [
        ("{timer_hours=0.0694}", True),
        ("{timer_hours=0.0, max_participations=3}", False),
        ("{timer_hours=0.0, round_separation=3}", False),
    ],
)
def test_limits_that_follow_from_a_timer_say_that_round_times_depend_on_no_device(
    trace_of, small, rules: str, rests_on_times: bool
) -> None:
    """In the cell that says that the guarantee holds whatever participation depends on."""
    lines = lines_of(trace_of(PATTERNS, 7, small(f"participation={rules}")))
    evidence = lines["What the figures are a statement about"].evidence
    condition = "recorded times of the rounds do not depend on what a single device holds"
    assert evidence.startswith("it holds even if participation depends on the released models")
    assert (condition in evidence) == rests_on_times


DATA = {
    "data.kind=language": "examples of devices that are in no population",
    "data={kind='points'}": "examples of devices that are in no population",
    "data={kind='source_code'}": "examples of 0.1 of the clients, which no device has",
    "data={kind='parquet', file='data.parquet', held_out_split='valid'}": (
        "examples of the split 'valid', whose clients may also train"
    ),
    "data={kind='parquet', file='data.parquet', held_out_share=0.2}": (
        "examples of the split 'test', whose clients may also train; without such a split, "
        "examples of 0.2 of the clients, which no device has"
    ),
    "data={kind='custom', file='DIRECTORY/data.py'}": (
        f"examples that the user's code holds out; of whom they are {UNSEEN}"
    ),
}


@pytest.mark.parametrize("data", DATA)
def test_a_statement_says_of_whom_the_evaluation_data_is(
    trace_of, small, data: str, tmp_path: Path, monkeypatch
) -> None:
    """By the kind of data: published splits often divide the examples of one client."""
    monkeypatch.chdir(tmp_path)
    Path("data.parquet").touch()
    Path("data.py").write_text("def data(seed): ...\n", encoding="utf-8")
    lines = lines_of(
        trace_of(
            PATTERNS, 7, small("training.enabled=true", data.replace("DIRECTORY", str(tmp_path)))
        )
    )
    assert lines["Evaluation data"].says == DATA[data]


def test_a_statement_does_not_take_the_scenario_s_data_for_that_of_a_user_s_task(
    trace_of, small, tmp_path: Path
) -> None:
    file = tmp_path / "task.py"
    file.write_text("def task(seed): ...\n", encoding="utf-8")
    task = f"training.task={{kind='custom', file='{file}'}}"
    line = lines_of(trace_of(PATTERNS, 7, small("training.enabled=true", task)))["Evaluation data"]
    assert line.says.startswith("the task's own examples, if it has any, of whom they are")
    assert line.says.endswith(f"; else {DATA['data.kind=language']}")
    assert "task.py" in line.evidence
    # A model that is not trained is not evaluated.
    untrained = lines_of(trace_of(PATTERNS, 7, small(task)))["Evaluation data"]
    assert untrained.evidence == "the scenario (data.kind = 'language')"


def test_a_statement_says_that_noise_is_measured_by_the_inflated_norm(trace_of, small) -> None:
    """The multiplier is relative to that norm, so rho and epsilon are those of fixed point."""
    traces = [
        trace_of(PATTERNS, 7, small(f"privacy.encoding={encoding}"))
        for encoding in ("{kind='fixed_point'}", "{kind='secagg', scale=5000}")
    ]
    audits = [audit_trace(trace) for trace in traces]
    (plain, secure), (_, noise) = (
        [
            {line.what: line.says for line in privacy_statement(audit).lines}[what]
            for trace, audit in zip(traces, audits, strict=True)
        ]
        for what in ("(epsilon, delta)", "Noise multiplier")
    )
    assert plain == secure
    assert "times the inflated norm, which is the clip norm times sqrt(1 + 1 / s" in noise
    documents = [audit.to_json() for audit in audits]
    assert documents[0]["encoding"] == {
        "kind": "fixed_point",
        "noise_is_relative_to": "the clip norm",
        "least_noise": None,
        "least_permitted_noise": None,
    }
    assert documents[1]["encoding"]["scale"] == 5000
    assert documents[1]["encoding"]["noise_is_relative_to"].startswith("the inflated norm")
    said = [any("secure aggregation" in each for each in audit.assumptions) for audit in audits]
    assert said == [False, True]
    terminal = "\n".join(map(str, audit_text(audits[1])))
    assert "scale s = 5,000" in terminal


def test_what_a_trace_cannot_show_is_said(trace) -> None:
    lines = {line.what: line for line in privacy_statement(audit_trace(trace)).lines}
    assert lines["Tuning"].evidence == UNSEEN


def test_a_claim_about_a_log_is_stated_as_claimed(log) -> None:
    claim = Claim(mechanism=Tree(), noise_multiplier=7.0, min_sep=3, epsilon=20.0)
    lines = {line.what: line for line in privacy_statement(audit_trace(log, claim=claim)).lines}
    assert UNSEEN in lines["Participation (claimed)"].evidence
    assert lines["Clip norm"].says == "not known"
    assert lines["The claim"].says == "The claim holds"
    assert lines["Claimed min-sep"].says == "3: holds"
    assert lines["Claimed noise multiplier"].says == "7: unchecked"


def test_a_claimed_timer_does_not_replace_stronger_limits_that_are_claimed(tmp_path: Path) -> None:
    """What follows from the timer alone may allow more, and may not be rested on either."""
    lines = [
        f"user-{device},{index},{86_400 * index}\n"
        for device, pattern in enumerate(PATTERNS)
        for index in pattern
    ]
    (tmp_path / "log.csv").write_text("device,round,at\n" + "".join(lines))
    log = import_log(
        tmp_path / "log.csv",
        "device", "round", 7, tmp_path / "log", time_column="at", time_unit="seconds",
    )  # fmt: skip
    claim = Claim(mechanism=Tree(), noise_multiplier=7.0, min_sep=3, max_participations=3)
    audits = [
        audit_trace(log, claim=each)
        for each in (claim, claim.model_copy(update={"timer_hours": 24.0}))
    ]
    with_timer = audits[1].mechanisms[0]
    assert with_timer.enforced.min_sep == 1
    assert not with_timer.enforced.may_rest_on
    stated = [{line.what: line.says for line in privacy_statement(each).lines} for each in audits]
    assert "Participation (claimed)" in stated[1]
    assert stated[1]["(epsilon, delta)"] == stated[0]["(epsilon, delta)"]


def test_stated_limits_stand_beside_tighter_ones_that_follow(
    tmp_path: Path, fedray_command
) -> None:
    """A round a day and a timer of 60 hours ensure min-sep 3; the claim says 2."""
    rows = "".join(
        f"user-{device},{index},{86_400 * index}\n"
        for device, pattern in enumerate(PATTERNS)
        for index in pattern
    )
    (tmp_path / "log.csv").write_text("device,round,at\n" + rows)
    log = import_log(
        tmp_path / "log.csv",
        "device", "round", 7, tmp_path / "log", time_column="at", time_unit="seconds",
    )  # fmt: skip
    claim = Claim(
        mechanism=Tree(), noise_multiplier=7.0, min_sep=2, max_participations=4, timer_hours=60.0
    )
    audit = audit_trace(log, claim=claim)
    expected = ["2 (follows: 3)", "4 (follows: 3)"]
    *_, enforced, stated = guarantees_table(audit).rows
    assert enforced[:3] == ("enforced", "3", "3")
    # A log cannot show that the timer was enforced.
    assert enforced[-1] == "if enforced"
    assert stated == ("claimed", *expected, *enforced[3:])
    assert all(each in str(audit) for each in expected)
    assert all(each in audit._repr_html_() for each in expected)
    lines = {line.what: line.says for line in privacy_statement(audit).lines}
    says = lines["Participation (claimed)"]
    assert says.startswith("min-sep 3 and at most 3 participations (it is claimed that min_sep = 2")
    text = 'mechanism = "tree"\nnoise_multiplier = 7.0\nmin_sep = 2\nmax_participations = 4\n'
    (tmp_path / "claim.toml").write_text(text + "timer_hours = 60.0\n")
    given = ("--claim", str(tmp_path / "claim.toml"), "--page", str(tmp_path / "page.html"))
    assert fedray_command("audit", str(log.path), *given)[0] == 0
    page = (tmp_path / "page.html").read_text()
    # In the table, and in the card of the claimed guarantee.
    assert [page.count(f">{each}<") for each in expected] == [2, 2]


def test_limits_that_the_log_breaks_are_never_stated(log) -> None:
    claim = Claim(mechanism=Tree(), noise_multiplier=7.0, min_sep=5, epsilon=20.0)
    audit = audit_trace(log, claim=claim)
    assert audit.mechanisms[0].claimed.sensitivity is None
    stated = privacy_statement(audit)
    (line,) = [line for line in stated.lines if line.what.startswith("Participation (")]
    # The min-sep of the trace takes the place of the broken one, under a condition.
    assert line.what == "Participation (corrected)"
    assert line.says.startswith(f"min-sep {audit.min_sep} and")
    assert stated.summary.startswith(
        "The claim does not hold. If this noise was added and "
        f"{line.says.partition(' (')[0]} were enforced, the models after 7 rounds have ("
    )
    assert "This log cannot show either." in stated.summary
    assert audit.corrected_claim is not None
    assert audit.corrected_claim.epsilon == audit.supported_epsilon


SENTENCE = re.compile(r"(?<!al\.)(?<=[.!?])\s+")
WORD = re.compile(r"[A-Za-z]{2}")
MOST_WORDS = 30


def sentences_of(statement: Statement) -> list[str]:
    """The sentences of the paragraph, and of the parts of each line."""
    cells = [part for line in statement.lines for part in line.says.split("; ")]
    texts = [statement.summary, *cells]
    return [sentence for text in texts for sentence in SENTENCE.split(text)]


STATEMENTS = {
    "plain": (),
    "adaptive": ADAPTIVE,
    "secure aggregation": ("privacy.encoding={kind='secagg', scale=5000}",),
    "noise of devices": (
        "privacy.mechanism={kind='identity'}",
        "privacy.trust={kind='devices', parameters=1000, scale=4096}",
    ),
    "training": ("training.enabled=true", "training.cohort_sample=100"),
    "owners": ("population.owners={mean_devices=1.4, most_devices=3}",),
    "rules": ("participation={timer_hours=0.0694, max_participations=3}",),
    "no rules": ("participation={timer_hours=0.0}",),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_sentence_of_a_statement_of_a_run_has_more_than_thirty_words(
    name: str, trace_of, small
) -> None:
    keys = ("participation.timer_hours=0.0694", "privacy.mechanism={kind='tree'}")
    scenario = small(*keys, *STATEMENTS[name])
    owners = [([0, 1, 1],)] if name == "owners" else [()]
    found = privacy_statement(audit_trace(trace_of(PATTERNS, 7, scenario, *owners[0])))
    check_sentences(found)


def check_sentences(statement: Statement) -> None:
    found = {
        each: sum(WORD.search(word) is not None for word in each.split())
        for each in sentences_of(statement)
    }
    assert max(found.values()) > 10
    assert {each: words for each, words in found.items() if words > MOST_WORDS} == {}


@pytest.fixture
def owned_log(tmp_path: Path) -> ImportedTrace:
    """Persons with up to two devices; device 0 comes three times, three rounds apart."""
    rows = "".join(
        f"user-{device},{index},{86_400 * index},{'xxy'[device]}\n"
        for device, pattern in enumerate(PATTERNS)
        for index in pattern
    )
    (tmp_path / "owned.csv").write_text("device,round,at,owner\n" + rows)
    return import_log(
        tmp_path / "owned.csv", "device", "round", 7, tmp_path / "owned",
        time_column="at", time_unit="seconds", owner_column="owner",
    )  # fmt: skip


@pytest.mark.parametrize(
    "limits",
    [
        {"min_sep": 3, "max_participations": 3},
        {"min_sep": 5, "max_participations": 2, "epsilon": 3.0},
        {"frontier": ((3, 3), (5, 1)), "rho": 9.0},
        {"timer_hours": 60.0},
    ],
    ids=["holds", "fails", "frontier", "timer"],
)
def test_no_sentence_of_a_statement_of_a_log_has_more_than_thirty_words(
    limits: dict, owned_log
) -> None:
    noise = {"mechanism": {"kind": "tree"}, "noise_multiplier": 7.0}
    claim = Claim.model_validate({**noise, **limits})
    check_sentences(privacy_statement(audit_trace(owned_log, claim=claim)))


def test_the_first_paragraph_says_that_the_claim_failed_and_has_the_figure_of_a_person(
    tmp_path: Path,
) -> None:
    rows = "".join(
        f"user-{device},{index},{'xxy'[device]}\n"
        for device, pattern in enumerate(PATTERNS)
        for index in pattern
    )
    (tmp_path / "log.csv").write_text("device,round,owner\n" + rows)
    log = import_log(
        tmp_path / "log.csv", "device", "round", 7, tmp_path / "log", owner_column="owner"
    )
    # mu is 2.2 for a device of the corrected limits, and 4.4 for a person with two.
    most = Tree().participation_sensitivity(MinSep(7, 3, 3)).value
    limits = {"min_sep": 5, "max_participations": 2}
    noise = {"mechanism": {"kind": "tree"}, "noise_multiplier": round(most / 2.2, 3)}
    claim = Claim.model_validate({**noise, **limits})
    audit = audit_trace(log, claim=claim)
    assert audit.claim_holds is False
    assert audit.corrected is not None
    assert audit.corrected.epsilon is not None
    person = audit.mechanisms[0].person
    assert person is not None
    of_person = person.named("corrected").epsilon
    assert of_person is not None
    assert audit.corrected.epsilon < of_person
    summary = privacy_statement(audit).summary
    assert summary.startswith("The claim does not hold. ")
    assert f"({up(audit.corrected.epsilon)}, 1e-10)-differential privacy" in summary
    said = f"For a person with up to 2 devices it is {up(of_person)} (corrected)."
    assert said in summary
    # The verdict of terminal and page says it too.
    assert said in audit.verdict
    # 16 and 37 are of two classes, each with its figure.
    assert 10 < audit.corrected.epsilon <= 20 < of_person
    assert f"above 20 (here {up(of_person)}) protects nobody" in summary
    assert f"above 10 (here {up(audit.corrected.epsilon)}) is weak" in summary


@pytest.mark.parametrize(
    ("epsilons", "classes"),
    [
        ((3.0, None), []),
        ((16.0,), ["weak"]),
        ((16.0, 9.0), ["weak"]),
        ((37.0,), ["nobody"]),
        ((16.0, 37.0), ["nobody", "weak"]),
        ((20.0,), ["weak"]),
        ((10.0,), []),
    ],
)
def test_a_weak_epsilon_is_called_what_it_is_and_nothing_else(
    epsilons: tuple, classes: list[str]
) -> None:
    said = weak_text(*epsilons)
    assert [each for each in ("nobody", "weak") if each in said] == classes
    assert ("above 20" in said) == ("nobody" in classes)
    assert ("above 10" in said) == ("weak" in classes)


def test_there_is_nothing_to_state_without_a_mechanism(log) -> None:
    audit = audit_trace(log)
    assert audit.max_participations == 3
    assert audit.mechanisms == ()
    with pytest.raises(InputError, match="no privacy to state"):
        privacy_statement(audit)


def test_without_a_noise_multiplier_there_is_no_epsilon(log) -> None:
    found = audit_trace(log, mechanism=Tree()).to_json()["guarantees"][0]
    assert found["sensitivity"] > 0
    assert (found["rho"], found["mu"], found["epsilon"]) == (None, None, None)


def test_devices_of_a_log_are_named_only_when_asked(log) -> None:
    audits = [
        audit_trace(log, 7.0, mechanism=Tree(), show_devices=shown) for shown in (False, True)
    ]
    hidden, named = (each.mechanisms[0].binding_device for each in audits)
    assert named == "user-0"
    assert hidden.startswith("#")
    assert "user" not in json.dumps(audits[0].to_json_in_full())


def test_the_command_writes_markdown_and_json(trace, tmp_path: Path, fedray_command) -> None:
    (tmp_path / "claim.toml").write_text(
        'mechanism = {kind = "tree"}\nnoise_multiplier = 7.0\nepsilon = 0.01\n'
    )
    code, out, _ = fedray_command(
        "audit",
        str(trace.path),
        "--claim",
        str(tmp_path / "claim.toml"),
        "--statement",
        str(tmp_path),
    )
    assert code == 1  # the claim does not hold
    assert f"statement {tmp_path}\n" in out
    assert "| Claimed epsilon | 0.01: " in (tmp_path / "statement.md").read_text()
    assert (
        json.loads((tmp_path / "statement.json").read_text())["lines"][0]["what"]
        == "Unit of privacy"
    )
    rows = [
        line
        for line in (tmp_path / "statement.md").read_text().splitlines()
        if line.startswith("|")
    ]
    assert all(line.replace("\\|", "").count("|") == 4 for line in rows)
    (tmp_path / "other.toml").write_text('mechanism = {kind = "tree"}\nnoise_multiplier = 100.0\n')
    code, _, err = fedray_command(
        "audit",
        str(trace.path),
        "--claim",
        str(tmp_path / "other.toml"),
        "--statement",
        str(tmp_path),
    )
    # The claim fails, whatever else cannot be written.
    assert (code, "noise_multiplier is not that of the run" in err) == (1, True)
    code, _, err = fedray_command(
        "audit", str(trace.path), "--statement", str(tmp_path / "other.toml")
    )
    assert (code, "other.toml' cannot be made" in err) == (2, True)
    code, _, err = fedray_command(
        "audit", str(trace.path), "--statement", str(tmp_path), "--show-devices"
    )
    assert (code, err.count("leave out --show-devices")) == (2, 1)


def test_the_directory_of_a_statement_is_made(trace, tmp_path: Path, fedray_command) -> None:
    code, out, _ = fedray_command(
        "audit", str(trace.path), "--statement", str(tmp_path / "new" / "deep"), "--json"
    )
    assert code == 0
    assert json.loads(out)["statement"] == str(tmp_path / "new" / "deep")
    assert (
        (tmp_path / "new" / "deep" / "statement.md").read_text().startswith("# Privacy statement")
    )


def test_the_statement_of_a_log_says_what_was_told_and_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "app,device,round,outcome\nx,a,0,yes\nx,b,1,yes\nx,a,1,no\nx,b,1,yes\n"
    )
    trace = import_log(
        tmp_path / "log.csv", ["app", "device"], "round", 2, tmp_path / "log",
        where=["outcome=yes"], repeats="once",
    )  # fmt: skip
    audit = audit_trace(trace, 7.0, mechanism=Tree())
    lines = privacy_statement(audit).lines
    by_what = {line.what: line.evidence for line in lines}
    assert by_what["Unit of privacy"] == "told to the import: the columns that name a device"
    assert by_what["What is released"] == by_what["Rounds"]
    assert by_what["Rounds"] == "told to the import: the number of rounds"
    assumed = {line.says: line.evidence for line in lines if line.what.startswith("Not covered")}
    assert tuple(assumed) == audit.assumptions[3:]

    def evidence_of(part: str) -> str:
        (found,) = (evidence for says, evidence in assumed.items() if part in says)
        return found

    assert evidence_of("group privacy") == by_what["Unit of privacy"]
    assert evidence_of("each released a model") == by_what["Rounds"]
    assert evidence_of("outcome=yes").startswith("told to the import: the conditions")
    assert (
        evidence_of("repeat another row")
        == "told to the import: what repeated rows are; it counted them"
    )
    assert evidence_of("names every participation") == f"assumed; {UNSEEN}"
    assert evidence_of("was clipped to the clip norm").endswith(UNSEEN)


def test_the_statement_of_a_run_rests_on_its_scenario_and_its_trace(trace) -> None:
    lines = privacy_statement(audit_trace(trace)).lines
    assumed = {line.says: line.evidence for line in lines if line.what.startswith("Not covered")}
    assert {evidence for says, evidence in assumed.items() if says.startswith("Enforced: ")} == {
        "the scenario's rules, and the recorded times of the rounds"
    }
    (of_seed,) = (evidence for says, evidence in assumed.items() if says.startswith("The seed is"))
    assert of_seed == "the seed that the trace records"
    assert not any("documentation" in line.evidence for line in lines)


def test_noise_that_was_given_is_not_said_to_be_that_of_the_run(trace) -> None:
    def evidence(audit: Audit) -> dict[str, str]:
        return {line.what: line.evidence for line in privacy_statement(audit).lines}

    own, other = evidence(audit_trace(trace)), evidence(audit_trace(trace, 20.0))
    assert own["Noise multiplier"] == other["Mechanism"] == "the scenario that was run"
    assert other["Noise multiplier"] == "given to the audit; that of the run was 7"
    assert "(of the run)" in audit_page(audit_trace(trace))
    assert "(given to the audit)" in audit_page(audit_trace(trace, 20.0))


def test_all_rows_that_the_import_left_out_are_in_the_statement(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("device,round,outcome\na,0,yes\nb,1,yes\na,1,no\n")
    trace = import_log(
        tmp_path / "log.csv", "device", "round", 2, tmp_path / "log", where=["outcome=yes"]
    )
    found = privacy_statement(audit_trace(trace, 7.0, mechanism=Tree()))
    says = [line.says for line in found.lines if line.what == "Left out of the log"]
    assert says == ["rows that do not meet the conditions of the import: 1"]


def test_a_statement_has_no_words_of_python(trace_of, small) -> None:
    """Neither False nor [], and no digits that only floats make."""
    plain = small("privacy.mechanism={kind='tree'}", "privacy.noise_multiplier=1.4000000000000001")
    trace = trace_of([[0]], 1, plain)
    says = {line.what: line.says for line in privacy_statement(audit_trace(trace)).lines}
    assert says["Mechanism"].endswith("; restarts = none; completion = no")
    assert says["Noise multiplier"] == "1.4, times the clip norm"
    assert says["What is released"] == "the model after each of 1 round"
