"""Privacy of a person: the audit's figures equal those of brute force over traces, owners and admissible patterns."""

import itertools
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import read_claim
from fedray.audit.guarantees import Limits, of_limits
from fedray.audit.noise import ServerNoise
from fedray.audit.participation import Patterns
from fedray.audit.persons import Persons, audited_person, joined_by_owner
from fedray.audit.privacy_statement import privacy_statement
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import InputError, TraceCorrupt
from fedray.base.rounding import given, up
from fedray.imports import importer
from fedray.imports.importer import import_log
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Dense, Identity, Tree
from fedray.report.audits import persons_tables
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.wire.owners import OwnersOfDevices, owners_on

CASES = 500
OWNED = ("population.owners.mean_devices=1.8", "population.owners.most_devices=3")


def random_matrix(rng: np.random.Generator, rounds: int, low: float) -> NDArray:
    """A lower triangular matrix with a positive diagonal and entries from `low` to 1 below it."""
    C = np.tril(rng.uniform(low, 1.0, (rounds, rounds)), -1)
    return C + np.diag(rng.uniform(0.5, 1.5, rounds))


def random_owned(
    rng: np.random.Generator, rounds: int
) -> tuple[Patterns, dict[int, list[list[int]]]]:
    """Patterns of a few devices with owners, and the same as the rounds of each device by owner."""
    by_owner: dict[int, list[list[int]]] = {}
    devices = []
    for device in range(int(rng.integers(1, 7))):
        chosen = np.flatnonzero(rng.random(rounds) < 0.5)
        if chosen.size:
            owner = int(rng.integers(0, 4))
            devices.append((device, owner, chosen.tolist()))
            by_owner.setdefault(owner, []).append(chosen.tolist())
    if not devices:
        return random_owned(rng, rounds)
    patterns = Patterns(
        rounds,
        np.array([device for device, _, _ in devices], np.uint64),
        np.array([len(each) for _, _, each in devices]),
        np.array([index for _, _, each in devices for index in each], np.uint32),
        owner_ids=np.array([owner for _, owner, _ in devices], np.uint64),
    )
    return patterns, by_owner


def test_the_observed_figure_is_the_largest_norm_of_a_person_s_summed_columns() -> None:
    rng = np.random.default_rng(1)
    repeated = 0
    for _ in range(CASES):
        rounds = int(rng.integers(1, 8))
        C = random_matrix(rng, rounds, 0.0)
        patterns, by_owner = random_owned(rng, rounds)
        norms = {
            owner: float(np.linalg.norm(sum(C[:, index] for each in of for index in each)))
            for owner, of in by_owner.items()
        }
        found = trace_sensitivity(Dense.from_matrix(C, "c.npy"), joined_by_owner(patterns))
        assert found.is_exact
        assert math.isclose(found.value, max(norms.values()), rel_tol=1e-12)
        assert math.isclose(norms[found.device_id], found.value, rel_tol=1e-12)
        assert list(found.rounds) == sorted(itertools.chain(*by_owner[found.device_id]))
        repeated += len(set(found.rounds)) < len(found.rounds)
    assert repeated > CASES / 4  # two devices of the worst person were often in one round


def test_no_contributions_exceed_the_observed_figure_if_entries_are_negative() -> None:
    rng = np.random.default_rng(2)
    has_signs = 0
    for _ in range(CASES):
        rounds = int(rng.integers(2, 6))
        C = random_matrix(rng, rounds, -1.0)
        patterns, by_owner = random_owned(rng, rounds)
        found = trace_sensitivity(Dense.from_matrix(C, "c.npy"), joined_by_owner(patterns))
        largest = 0.0
        for of in by_owner.values():
            columns = C[:, list(itertools.chain(*of))]
            # Contributions of one dimension are signs, which are among the unit vectors.
            signs = np.array(list(itertools.product([1, -1], repeat=min(columns.shape[1], 10))))
            signs = np.pad(
                signs, ((0, 0), (0, columns.shape[1] - signs.shape[1])), constant_values=1
            )
            largest = max(largest, float(np.linalg.norm(columns @ signs.T, axis=0).max()))
        assert found.value >= largest * (1 - 1e-9)
        has_signs += found.value > largest * (1 + 1e-6)
    assert has_signs  # some worst contributions need more than one dimension


def admissible(participation: MinSep) -> list[tuple[int, ...]]:
    """Every pattern that a participation permits, the empty one included."""
    n, b, k = participation.rounds, participation.min_sep, participation.max_participations
    return [
        pattern
        for count in range(k + 1)
        for pattern in itertools.combinations(range(n), count)
        if all(later - earlier >= b for earlier, later in itertools.pairwise(pattern))
    ]


def test_the_enforced_figure_is_never_below_any_admissible_patterns_and_is_attained_if_exact() -> (
    None
):
    rng = np.random.default_rng(3)
    exact = 0
    for _ in range(CASES):
        n = int(rng.integers(1, 6))
        b = int(rng.integers(1, n + 1))
        participation = MinSep(n, b, int(rng.integers(1, -(-n // b) + 1)))
        C = random_matrix(rng, n, 0.0)
        strategy = Dense.from_matrix(C, "c.npy")
        m = int(rng.integers(1, 4))
        patterns = Patterns(n, np.zeros(1, np.uint64), np.ones(1, np.int64), np.zeros(1, np.uint32))
        persons = Persons(patterns, (1,), m, "")
        limits = Limits(participation, "")
        of_device = of_limits("enforced", limits, strategy, ServerNoise(2.0), 1e-6, True)
        of_person = audited_person(persons, str, strategy, ServerNoise(2.0), [of_device])
        enforced = of_person.named("enforced")
        sums = np.array([C[:, list(each)].sum(axis=1) for each in admissible(participation)])
        worst = max(
            float(np.linalg.norm(sum(chosen)))
            for chosen in itertools.combinations_with_replacement(sums, m)
        )
        assert enforced.sensitivity is not None
        assert enforced.sensitivity.value >= worst * (1 - 1e-12)
        if enforced.sensitivity.is_exact:
            exact += 1
            assert math.isclose(enforced.sensitivity.value, worst, rel_tol=1e-9)
        # Group privacy: mu grows by m and rho by m^2.
        assert of_device.mu is not None
        assert of_device.rho is not None
        assert enforced.mu == pytest.approx(m * of_device.mu, rel=1e-12)
        assert enforced.rho == pytest.approx(m**2 * of_device.rho, rel=1e-12)
    assert exact > CASES / 4


def test_persons_own_as_many_devices_as_the_scenario_says(small) -> None:
    scenario = small(*OWNED)
    owners = OwnersOfDevices.of(scenario)
    assert owners is not None
    devices = np.arange(600_000, dtype=np.uint64)
    found = owners_on(owners, devices)
    _, first, counts = np.unique(found, return_index=True, return_counts=True)
    assert (found[first] == devices[first]).all()  # a person is named by the first device
    assert (np.repeat(first, counts) == found).all()  # and owns consecutive ids
    assert counts.max() == 3
    # Binomial shares (0.36, 0.48, 0.16). A cell holds at most 6 persons of one kind, so counts have at most 6 times the
    # variance of independent ones; 5 deviations are passed by chance once in a million runs.
    shares = np.bincount(counts)[1:] / counts.size
    tolerance = 5 * math.sqrt(6 * 0.25 / counts.size)
    assert np.abs(shares - [0.36, 0.48, 0.16]).max() < tolerance
    table = scenario.population.owners
    assert table is not None
    assert np.allclose(table.shares, [0.36, 0.48, 0.16])
    other = OwnersOfDevices.of(small(*OWNED, "seed=99"))
    assert other is not None
    assert (owners_on(other, devices) != found).any()


def test_owners_in_a_trace_do_not_depend_on_shards_and_leave_the_rest_as_it_is(
    small, tmp_path: Path
) -> None:
    wanted = ("rounds.count=6", "population.devices=140000")
    one, three = (
        simulate(small(*wanted, *OWNED), Placement(shards, "in-process"), tmp_path / str(shards))
        for shards in (1, 3)
    )
    assert one.digest == three.digest
    plain = simulate(small(*wanted), Placement(1, "in-process"), tmp_path / "plain")
    owners = OwnersOfDevices.of(small(*wanted, *OWNED))
    assert owners is not None
    for part in range(len(one.run["parts"])):
        columns = one.columns(part)
        assert (columns.pop("owner_id") == owners_on(owners, columns["device_id"])).all()
        for name, column in plain.columns(part).items():
            np.testing.assert_array_equal(column, columns[name])
    one.verify()
    persons = audit_trace(one).persons
    assert persons is not None
    assert persons.most_devices == 3
    assert persons.patterns.participations == audit_trace(plain).participations
    assert audit_trace(plain).persons is None


def test_an_audit_and_its_statement_and_page_give_both_units(trace_of, small) -> None:
    patterns = [[0, 4], [0, 5], [1, 2], [3]]
    kept = ("participation.timer_hours=0.01", "privacy.noise_multiplier=5.0")
    trace = trace_of(patterns, 6, small(*OWNED, *kept), [0, 0, 2, 2])
    audit = audit_trace(trace, mechanism=Identity())
    (used,) = audit.mechanisms
    assert used.person is not None
    assert audit.persons is not None
    # Rounds 0, 0, 4, 5 of independent noise: 2^2 + 1 + 1.
    assert used.trace.value == pytest.approx(math.sqrt(2))
    assert used.person.trace.value == pytest.approx(math.sqrt(6))
    assert (used.person.binding_person, used.person.trace.rounds) == ("0", (0, 0, 4, 5))
    assert audit.persons.persons_by_devices == (0, 2)
    enforced = used.person.named("enforced").sensitivity
    of_device = used.enforced.sensitivity
    assert enforced is not None
    assert of_device is not None
    assert enforced.value == 3 * of_device.value
    document = audit.to_json()
    assert document["persons"]["most_devices"] == 3
    (of_person,) = [each["person"] for each in document["mechanisms"]]
    assert of_person["binding_rounds"] == [0, 0, 4, 5]
    assert "enforced, per person" in {each.guarantee for each in audit.events}
    said = {line.what: line for line in privacy_statement(audit).lines}
    line = said["A person instead of a device"]
    assert "at most 3 devices" in line.says
    assert "enforced: rho" in line.says
    assert "observed: rho" in line.says
    assert "A person instead of a device" in audit.page()
    assert "A person instead of a device" in str(audit)


def test_a_claim_s_figures_are_given_for_persons_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("d,r,p,t\na,0,x,0\nb,0,x,10\na,2,x,180000\nc,1,y,90000\n")
    trace = import_log(
        tmp_path / "log.csv",
        "d",
        "r",
        3,
        tmp_path / "log",
        owner_column="p",
        time_column="t",
        time_unit="seconds",
    )
    (tmp_path / "claim.toml").write_text(
        'mechanism = {kind = "identity"}\nnoise_multiplier = 3.0\nmin_sep = 1\nmax_participations = 2\ntimer_hours = 24\n'
        "delta = 1e-6\n"
    )
    audit = audit_trace(trace, claim=read_claim(tmp_path / "claim.toml"))
    person = audit.mechanisms[0].person
    assert person is not None
    for name in ("enforced", "claimed"):
        of_person, of_device = person.named(name), getattr(audit.mechanisms[0], name)
        assert of_person.sensitivity is not None
        assert of_person.sensitivity.value == 2 * of_device.sensitivity.value
        assert of_person.may_rest_on == of_device.may_rest_on
        assert any("at most 2 devices" in each for each in of_person.assumptions)
    assert person.trace.value == pytest.approx(math.sqrt(5))


def test_noise_of_devices_gives_a_person_m_squared_times_rho(trace_of, small) -> None:
    encoding = 'privacy.trust={kind="devices", parameters=1000, scale=4096}'
    mechanism = 'privacy.mechanism={kind="identity"}'
    scenario = small(*OWNED, encoding, mechanism)
    trace = trace_of([[0], [0], [1]], 2, scenario, [0, 0, 2])
    (used,) = audit_trace(trace).mechanisms
    assert used.person is not None
    enforced, of_device = used.person.named("enforced").rho, used.enforced.rho
    observed, of_one = used.person.named("observed").rho, used.observed.rho
    assert enforced is not None
    assert of_device is not None
    assert observed is not None
    assert of_one is not None
    assert enforced == pytest.approx(9 * of_device, rel=1e-12)
    assert observed == pytest.approx(4 * of_one, rel=1e-12)


@pytest.mark.parametrize(
    ("owners", "said"), [([0, 0, 0, 0], "4 devices"), ([0, 1, 1, 0], "2 devices")]
)
def test_a_person_with_more_devices_than_the_scenario_permits_is_noticed(
    trace_of, small, owners: list[int], said: str
) -> None:
    most = ("population.owners.mean_devices=1", "population.owners.most_devices=1")
    trace = trace_of([[0], [1], [2], [3]], 4, small(*most), owners)
    with pytest.raises(TraceCorrupt, match=f"a person has {said}"):
        audit_trace(trace)


def test_a_device_with_two_owners_in_a_trace_is_noticed(trace_of, small, monkeypatch) -> None:
    trace = trace_of([[0, 1], [1]], 2, small(*OWNED), [0, 0])
    read = type(trace)._columns_of

    def changed(self, part, names):
        columns = read(self, part, names)
        columns["owner_id"] = np.arange(columns["owner_id"].size).astype(np.uint64)
        return columns

    monkeypatch.setattr(type(trace), "_columns_of", changed)
    with pytest.raises(TraceCorrupt, match="two owners"):
        audit_trace(trace)


def test_owners_need_a_mean_of_devices_that_is_possible(small) -> None:
    with pytest.raises(InputError, match="mean_devices=3 must be at most most_devices=2"):
        small("population.owners.mean_devices=3", "population.owners.most_devices=2")


def log_of(path: Path, kind: str, rows: list[tuple[str, int, str]]) -> Path:
    """A log of (device, round, person), as CSV or as Parquet with numbers as owners."""
    file = path / f"log.{kind}"
    if kind == "csv":
        file.write_text("d,r,p\n" + "".join(f"{d},{r},{p}\n" for d, r, p in rows))
        return file
    devices, rounds, owners = zip(*rows, strict=True)
    numbers = [None if not each else sum(each.encode()) for each in owners]
    table = {"d": list(devices), "r": list(rounds), "p": pa.array(numbers, pa.int64())}
    pq.write_table(pa.table(table), file)
    return file


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("batch_rows", [1, 2, 1 << 20])
def test_an_imported_log_has_the_log_s_owners(
    tmp_path: Path, monkeypatch, kind: str, batch_rows: int
) -> None:
    monkeypatch.setattr(importer, "BATCH_ROWS", batch_rows)
    monkeypatch.setattr(importer, "NAMES_PER_GROUP", 2)
    monkeypatch.setattr("fedray.trace.imported.NAMES_PER_GROUP", 2)
    rows = [("a", 0, "ann"), ("c", 0, "ann"), ("b", 1, "bob"), ("a", 2, "ann"), ("d", 1, "cy")]
    trace = import_log(
        log_of(tmp_path, kind, rows), "d", "r", 3, tmp_path / "out", owner_column="p"
    )
    audit = audit_trace(trace, 4.0, 1e-6, Tree(), show_devices=True)
    assert audit.persons is not None
    # Devices a, b, c, d have the ids 0 .. 3; persons are named by their first device.
    assert audit.patterns.owner_ids is not None
    assert audit.patterns.owner_ids.tolist() == [0, 1, 0, 3]
    assert audit.persons.patterns.rounds.tolist() == [0, 0, 2, 1, 1]
    assert audit.persons.persons_by_devices == (2, 1)
    person = audit.mechanisms[0].person
    assert person is not None
    assert person.binding_person == ("ann" if kind == "csv" else str(sum(b"ann")))
    hashed = audit_trace(trace, 4.0, 1e-6, Tree()).mechanisms[0].person
    assert hashed is not None
    assert hashed.binding_person.startswith("#")
    trace.verify()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("batch_rows", [1, 1 << 20])
def test_a_log_with_a_missing_owner_or_two_owners_of_a_device_is_refused(
    tmp_path: Path, monkeypatch, kind: str, batch_rows: int
) -> None:
    monkeypatch.setattr(importer, "BATCH_ROWS", batch_rows)
    rows = [("a", 0, "ann"), ("b", 0, "ann"), ("a", 2, "bob"), ("b", 1, "ann"), ("c", 2, "cy")]
    with pytest.raises(InputError, match="device 'a' has the owners .* but a device belongs to"):
        import_log(log_of(tmp_path, kind, rows), "d", "r", 3, tmp_path / "out", owner_column="p")
    rows[2] = ("a", 2, "")
    with pytest.raises(InputError, match=r"1 row without an owner \(such as device 'a', round"):
        import_log(log_of(tmp_path, kind, rows), "d", "r", 3, tmp_path / "out", owner_column="p")
    assert not (tmp_path / "out").exists()
    # Left out on request, such rows make the import incomplete, as other unusable rows do.
    trace = import_log(
        log_of(tmp_path, kind, rows),
        *("d", "r", 3, tmp_path / "out"),
        owner_column="p",
        leave_out_invalid=True,
    )
    assert "1 row without an owner" in trace.incompleteness


def test_a_shared_device_may_be_a_unit_per_person(tmp_path: Path) -> None:
    log = log_of(tmp_path, "csv", [("a", 0, "ann"), ("a", 1, "bob"), ("b", 1, "bob")])
    trace = import_log(log, ["d", "p"], "r", 2, tmp_path / "out", owner_column="p")
    persons = audit_trace(trace).persons
    assert persons is not None
    assert (persons.persons, persons.max_participations) == (2, 2)


def test_the_import_command_takes_a_column_of_owners(tmp_path: Path, fedray_command) -> None:
    log = log_of(tmp_path, "csv", [("a", 0, "ann"), ("b", 1, "ann")])
    columns = [f"--column={role}" for role in ("device=d", "round=r", "owner=p")]
    out = str(tmp_path / "out")
    code, *_ = fedray_command("import", str(log), *columns, "--rounds", "2", "--out", out)
    assert code == 0
    code, shown, _ = fedray_command("audit", out, "--mechanism", "tree", "--noise-multiplier", "3")
    assert code == 0
    assert "A person instead of a device" in shown


def test_a_scenario_with_owners_reads_back(small) -> None:
    scenario = small(*OWNED)
    assert Scenario.from_tables(scenario.to_tables()) == scenario
    assert scenario.digest != small().digest


@pytest.mark.parametrize("claimed", ["min_sep = 2", "min_sep = 5"])
def test_a_claim_that_is_looser_than_the_rules_has_its_own_figure_for_persons(
    tmp_path: Path, small, trace_of, claimed: str
) -> None:
    """The rules ensure min-sep 4. A claim of 2 is m times its own figure of a device; one of 5, which the trace breaks, has a reason."""
    rules = "participation.round_separation=4", "participation.timer_hours=0"
    scenario = small(
        *OWNED, *rules, "privacy.noise_multiplier=7", "privacy.mechanism={kind='tree'}"
    )
    trace = trace_of([[0, 4, 8], [1, 5], [2, 6], [3, 7]], 9, scenario, [0, 0, 1, 1])
    (tmp_path / "claim.toml").write_text(
        f'mechanism = "tree"\nnoise_multiplier = 7.0\nrounds = 9\nepsilon = 99\ndelta = 1e-6\n{claimed}\n'
    )
    audit = audit_trace(trace, claim=read_claim(tmp_path / "claim.toml"))
    (mechanism,) = audit.mechanisms
    assert mechanism.person is not None
    of_device, of_person = mechanism.claimed, mechanism.person.named("claimed")
    assert of_person.may_rest_on == of_device.may_rest_on
    (table,) = persons_tables(audit)
    row = next(dict(zip(table.columns, e, strict=True)) for e in table.rows if e[0] == "claimed")
    notes = " ".join(table.notes)
    assert "Not observed: it would hold only if no device" in notes
    if claimed == "min_sep = 5":
        assert row["publishable"] == "no"
        assert "claimed: this trace breaks the claimed min_sep" in notes
        return
    enforced = mechanism.person.named("enforced")
    assert of_person.rho == pytest.approx(9 * of_device.rho, rel=1e-12)
    assert of_person.rho > enforced.rho
    assert row["sensitivity"] == up(3 * of_device.sensitivity.value, 6)
    assert row["publishable"] == "yes"


@pytest.mark.parametrize("times", [1.5, 40.0])
def test_noise_that_a_person_needs_is_not_called_more_than_needed(
    small, trace_of, times: float
) -> None:
    """A target of 1.5 times the epsilon of a device is missed by a person; one of 40 times is met, and neither has a command for less noise."""
    rules = "participation.round_separation=4", "participation.timer_hours=0"
    own = small(*OWNED, *rules, "privacy.noise_multiplier=7", "privacy.mechanism={kind='tree'}")
    patterns, owners = [[0, 4, 8], [1, 5], [2, 6], [3, 7]], [0, 0, 1, 1]
    epsilon = audit_trace(trace_of(patterns, 9, own, owners)).basis.guarantee.epsilon
    scenario = own.with_overrides(f"privacy.wanted_epsilon={times * epsilon}")
    verdict = audit_trace(trace_of(patterns, 9, scenario, owners)).verdict
    meets = f"The epsilon of a device meets the target epsilon {given(times * epsilon)}, and "
    audit = audit_trace(trace_of(patterns, 9, scenario, owners))
    of_person = audit.mechanisms[0].person.named("enforced").epsilon
    share = f"{100 * of_person / (times * epsilon):.0f} % of it."
    # The share is that of the person, who has the larger epsilon, and not that of the device.
    assert share != f"{100 / times:.0f} % of it."
    met = f"so does that of a person, which spends {share}"
    assert meets + ("that of a person misses it." if times < 3 else met) in verdict
    assert "fedray calibrate" not in verdict
    is_met = f"meets the target epsilon {given(times * epsilon)}."
    misses = f"misses the target epsilon {given(times * epsilon)}, and 3 times the noise would lower it to the enforced one of a device."
    assert f"{up(of_person)} (enforced), which {misses if times < 3 else is_met}" in verdict
