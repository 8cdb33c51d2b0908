"""Valid inputs at the edges of what is allowed, which are really run: `make fuzz`, or fuzz.py --valid.

A case notes what it reaches behind validation. A refusal in one line may come at any time. A finding is another exception or
warning, a figure that is not finite or negative, more observed than is enforced, a noise multiplier that misses its target, and
a figure that differs when the case is run again, in another number of shards, or after an interruption.
"""

import contextlib
import dataclasses
import datetime
import io
import json
import math
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from drawn_tables import KEYS_OF_FILES, drawn_key, drawn_table
from pyarrow import csv
from pydantic import BaseModel

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.calibration import CalibratedGuarantee, calibrate_trace
from fedray.audit.claims import Claim
from fedray.audit.evidence import write_evidence
from fedray.audit.participation import read_patterns
from fedray.audit.privacy_statement import privacy_statement
from fedray.audit.several_tasks import audit_tasks
from fedray.base.errors import InputError, ScenarioError, Starved
from fedray.cli import app
from fedray.commands.frame.exit_codes import exit_code
from fedray.imports.importer import import_log
from fedray.imports.log_records import RecordColumns
from fedray.mechanisms.figures import Figures
from fedray.mechanisms.files import strategy_of
from fedray.mechanisms.optimize.design import FOLLOWING_KINDS, KINDS, RECIPES, MechanismRequest
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity, Tree
from fedray.runs.design import evaluate_mechanisms, find_mechanism
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.studies.fit import VARIED, ObservedRun, fit_min_sep
from fedray.studies.habits.fit import fit_habits
from fedray.studies.habits.read import read_observed_log
from fedray.studies.plan import PlanTarget, make_plan
from fedray.studies.sweep.run import run_sweep
from fedray.studies.sweep.sweep import Sweep
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

BASE: dict[str, Any] = {
    "population": {"devices": 2000},
    "participation": {"timer_hours": 4.0},
    "rounds": {"count": 6, "report_goal": 20, "max_days": 3.0},
    "privacy": {"noise_multiplier": 2.0, "mechanism": {"kind": "tree"}},
    "training": {"enabled": False, "cohort_sample": 4},
}
ALWAYS_ON = {"availability": {"model": "always_on"}}
UPLOADS = {"window_hours": 3.0, "windows": 2}
NO_TIMER = {"timer_hours": 0.0}
BASES: tuple[dict[str, Any], ...] = (
    {},
    ALWAYS_ON,
    {"availability": {"model": "poisson"}, "participation": {"policies": [{"kind": "swor", "period_hours": 6.0}]}},
    {**ALWAYS_ON, "privacy": {"stop_at": {"rho": 0.8}, "at_limit": "exclude", "noise_multiplier": 2.0, "mechanism": {"kind": "tree"}}, "participation": NO_TIMER},
    {**ALWAYS_ON, "privacy": {"clipping": {"kind": "adaptive", "count_noise": 8.0}, "mechanism": {"kind": "tree", "restarts": [2, 5]}, "noise_multiplier": 2.0}},
    {**ALWAYS_ON, "rounds": {"mode": "buffered", "count": 6, "report_goal": 20, "max_days": 3.0, "buffer": {"concurrency": 60, "max_staleness": 2}}},
    {**ALWAYS_ON, "rounds": {"mode": "upload-then-train", "count": 6, "report_goal": 20, "max_days": 3.0, "uploads": {**UPLOADS, "schedule": {"kind": "cyclic", "min_sep": 2}}}},
    {**ALWAYS_ON, "rounds": {"mode": "upload-then-train", "count": 6, "report_goal": 20, "max_days": 3.0, "uploads": {**UPLOADS, "schedule": {"kind": "poisson", "probability": 0.05}}}, "privacy": {"noise_multiplier": 2.0, "mechanism": {"kind": "identity"}}},
    {**ALWAYS_ON, "privacy": {"noise_multiplier": 8.0, "mechanism": {"kind": "identity"}, "trust": {"kind": "devices", "parameters": 8, "scale": 4096}}},
)  # fmt: skip
"""Small scenarios of every mode, on top of `BASE`."""
TRAINED: tuple[tuple[int, dict[str, Any]], ...] = (
    (5, {"data": {"kind": "points", "dimension": 5}, "training": {"task": {"kind": "quadratic"}}}),
    (12, {"data": {"kind": "classes", "shape": [3], "classes": 3}, "training": {"task": {"kind": "logistic"}}}),
    (31, {"data": {"kind": "classes", "shape": [3], "classes": 3}, "training": {"task": {"kind": "mlp", "hidden": [4]}}}),
)  # fmt: skip
"""Parameters of a model, with the data and the task that it is of."""
SESSIONS = "device,start,end\n0,3600,40000\n0,80000,86400\n1,0,86400\n2,200000,250000\n"
RUNS = """
import numpy as np

def runs(device_ids, low, high, seed):
    days = np.arange(int(low // 86400) - 1, int(high // 86400) + 1)
    start = days * 86400.0 + 3600.0 * (device_ids[:, None] % 20).astype(np.float64)
    end = start + 7200.0
    keep = (end > low) & (start < high)
    return np.nonzero(keep)[0], start[keep], end[keep]
"""
DATA = """
class Parts:
    num_partitions = 4
    def load_partition(self, number):
        return {"x": [[1.0, 2.0]] * 3, "y": [0, 1, number % 2]}

def data(seed):
    return Parts()
"""


class Finding(AssertionError):
    """What should not be."""


def demand(holds: bool, what: str) -> None:
    """Raises Finding unless it holds."""
    if not holds:
        raise Finding(what)


def run_command(line: list[str]) -> tuple[int, str]:
    """The exit code of the command, run in this process, and what it printed as errors."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code(lambda: app(line, standalone_mode=False))
    return code, err.getvalue()


def check_document(document: Any, where: str = "") -> None:
    """Figures are finite, and those of privacy and error are not negative. Raises Finding."""
    if isinstance(document, dict):
        for key, value in document.items():
            check_document(value, f"{where}.{key}")
    elif isinstance(document, list | tuple):
        for value in document:
            check_document(value, f"{where}[]")
    elif isinstance(document, float):
        name = where.rpartition(".")[2].removesuffix("[]")
        demand(math.isfinite(document), f"{where} is {document}")
        if name in ("rho", "epsilon", "mu", "sensitivity", "noise_multiplier", "mean", "max_loss", "rms_loss"):  # fmt: skip
            demand(document >= 0, f"{where} is {document}")


def check_audit(audit: Audit) -> None:
    """Nothing is observed beyond what is enforced, and all figures are ones. Raises Finding."""
    check_document(audit.to_json())
    for each in audit.mechanisms:
        for of in (each.enforced, each.claimed):
            # What is claimed of a log may be wrong, which the findings say then.
            if of.name == "claimed" and audit.findings:
                continue
            for name in ("mu", "rho", "epsilon"):
                seen, allowed = getattr(each.observed, name), getattr(of, name)
                if seen is not None and allowed is not None:
                    demand(seen <= allowed * (1 + 1e-9), f"{each.name}: observed {name} {seen} above {of.name} {allowed}")  # fmt: skip


def check_calibrated(found: CalibratedGuarantee, epsilon: float | None, rho: float | None) -> None:
    """A guarantee meets its target, and would not with less noise. Raises Finding."""
    z, of = found.noise_multiplier, found.guarantee
    if z is None:
        return
    target, name = (epsilon, "epsilon") if rho is None else (rho, "rho")
    assert target is not None
    spent = getattr(of, name)
    demand(spent is not None and spent <= target, f"{of.name} {name} {spent} at z={z} misses {target}")  # fmt: skip
    assert of.event is not None
    # The event of noise of devices has a variance in place of a noise multiplier.
    variance = getattr(of.event, "device_variance", None)
    smaller = {"noise_multiplier": z * (1 - 1e-5)} if variance is None else {"device_variance": variance * (1 - 1e-5) ** 2}  # fmt: skip
    less = dataclasses.replace(of, event=of.event.model_copy(update=smaller))
    demand(getattr(less, name) > target * (1 - 1e-9), f"{of.name} {name} {target}: z={z} is not the least")  # fmt: skip


def figures_of(trace: Trace) -> dict[str, Any]:
    """What must not differ between two runs of one scenario."""
    trained = trace.trained
    return {
        "trace": trace.digest,
        "ended": trace.run["ended"],
        "model": None if trained is None else trained.parameters().tobytes(),
    }


def drawn_target(rng: random.Random) -> dict[str, float]:
    """An epsilon or a rho, from tiny to large."""
    return {rng.choice(["epsilon", "rho"]): 10 ** rng.uniform(-4, 3)}


class Valid:
    """A target of valid inputs: notes what each case reaches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reached: list[str] = []
        folder.mkdir()

    def case(self, rng: random.Random) -> bool:
        """Whether the input was refused before anything was reached. Raises what is found."""
        self.reached = []
        out = self.folder / "case"
        out.mkdir()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                self.run(rng, out)
        finally:
            shutil.rmtree(out, ignore_errors=True)
        return False

    def run(self, rng: random.Random, out: Path) -> None:
        raise NotImplementedError

    def note(self, what: str) -> None:
        """Notes that an operation is behind its validation."""
        if what not in self.reached:
            self.reached.append(what)


class Scenarios(Valid):
    """Scenarios: some keys of a small one are drawn again, one after the other, as long as it stays valid."""

    def __init__(self, folder: Path, make_data: dict[str, Callable[[Path], Any]]) -> None:
        super().__init__(folder)
        pq.write_table(csv.read_csv(io.BytesIO(SESSIONS.encode())), folder / "sessions.parquet")
        (folder / "runs.py").write_text(RUNS)
        (folder / "data.py").write_text(DATA)
        matrix = np.tril(np.full((12, 12), 0.25)) + 0.75 * np.eye(12)
        np.save(folder / "matrix.npy", matrix)
        np.save(folder / "banded.npy", np.triu(matrix, -2))
        for kind, make in make_data.items():
            make(folder / kind)

    def scenario(self, rng: random.Random, is_trained: bool = False) -> Scenario:
        """A valid scenario."""
        tables = {**BASE, **rng.choice(BASES), "seed": rng.choice([0, 1, 2**63 - 1, rng.randrange(2**63)])}  # fmt: skip
        if is_trained:
            parameters, trained = rng.choice(TRAINED)
            training = {"enabled": True, "cohort_sample": 4, **trained["training"]}
            if tables["rounds"].get("uploads", {}).get("schedule", {}).get("kind") == "poisson":
                training["weighting"] = {"kind": rng.choice(["fixed", "clipped"])}
            tables |= {**trained, "training": training}
            if "encoding" in tables.get("privacy", {}):
                encoding = {**tables["privacy"]["encoding"], "parameters": parameters}
                tables["privacy"] = {**tables["privacy"], "encoding": encoding}
        scenario = Scenario.from_tables(tables, directory=self.folder)
        for _ in range(rng.choice([0, 2, 5, 10, 20])):
            tables = scenario.to_tables()
            self._change(scenario, tables, rng, is_trained)
            with contextlib.suppress(ScenarioError):
                scenario = Scenario.from_tables(tables, directory=self.folder)
        return scenario

    def _change(
        self, scenario: Scenario, tables: dict[str, Any], rng: random.Random, is_trained: bool
    ) -> None:
        keys = [key for key in Scenario.model_fields if key not in ("name", "description", "seed")]
        key, path, table, below = rng.choice(keys), "", scenario, tables
        while True:
            value = getattr(table, key)
            where = f"{path}.{key}".lstrip(".")
            # Another kind of data would have no task that trains on it.
            is_kept = is_trained and where in ("data", "training", "training.task")
            is_table = isinstance(value, BaseModel) and bool(_keys_of(value))
            if not is_table or not (is_kept or path == "" or rng.random() < 0.6):
                break
            table, path, below = value, where, below.setdefault(key, {})
            key = rng.choice(_keys_of(table))
        drawn = drawn_key(type(table), key, path, rng)
        if drawn is None:
            below.pop(key, None)
        else:
            below[key] = drawn

    def placement(self, rng: random.Random, checkpoint_seconds: float = math.inf) -> Placement:
        """One to three shards."""
        return Placement(rng.choice([1, 2, 3]), "in-process", checkpoint_seconds=checkpoint_seconds, trainers=rng.choice([1, 2]))  # fmt: skip


def _keys_of(table: BaseModel) -> list[str]:
    """The keys of a table that may be drawn without the others."""
    kept = ("kind", "model", "enabled", *KEYS_OF_FILES)
    return [key for key in type(table).model_fields if key not in kept]


class Simulations(Scenarios):
    """Runs of scenarios: simulated or trained, audited, calibrated; again, and interrupted."""

    def __init__(
        self, folder: Path, make_data: dict[str, Callable[[Path], Any]], is_trained: bool
    ) -> None:
        super().__init__(folder, make_data)
        self._is_trained = is_trained

    def run(self, rng: random.Random, out: Path) -> None:
        scenario = self.scenario(rng, self._is_trained)
        what = "train" if scenario.training.enabled else "simulate"

        def made(name: str, **options: Any) -> Trace:
            return run_scenario(scenario, self.placement(rng), out / name, on_start=lambda: self.note(what), **options)  # fmt: skip

        try:
            trace = made("trace")
        except Starved:
            demand(not list(out.iterdir()), "a run that starved left something behind")
            return
        trace.verify()
        if rng.random() < 0.3:
            demand(figures_of(made("again")) == figures_of(trace), "run again, a figure differs")
        if rng.random() < 0.2:
            self._interrupt(scenario, trace, rng, out / "resumed")
        self._audit(trace, rng, out)

    def _interrupt(self, scenario: Scenario, whole: Trace, rng: random.Random, out: Path) -> None:
        moment = rng.randint(1, len(whole.rounds["state"]))
        told = 0

        def interrupt(_: Any) -> None:
            nonlocal told
            told += 1
            if told == moment:
                raise KeyboardInterrupt

        try:
            run_scenario(scenario, self.placement(rng, 0.0), out, interrupt)
        except KeyboardInterrupt:
            if not Path(f"{out}.partial").exists():
                return
        else:
            return
        resumed = resume_run(out, self.placement(rng), trust_code=True)
        self.note("resume")
        demand(figures_of(resumed) == figures_of(whole), "after an interruption a figure differs")

    def _audit(self, trace: Trace, rng: random.Random, out: Path) -> None:
        audit = audit_trace(trace)
        self.note("audit")
        check_audit(audit)
        check_document(privacy_statement(audit).to_json())
        if rng.random() < 0.1:
            page, events = str(out / "page.html"), str(out / "events.json")
            code, told = run_command(["audit", str(trace.path), "--page", page, "--events", events])
            demand(code in (0, 1) and not told.strip(), f"audit: exit code {code}, {told[-300:]!r}")
            self.note("page")
        target = drawn_target(rng)
        calibrated = calibrate_trace(trace, delta=10 ** rng.uniform(-29, -1), **target)
        self.note("calibrate")
        check_document(calibrated.to_json())
        for found in (calibrated.enforced, calibrated.observed):
            check_calibrated(found, target.get("epsilon"), target.get("rho"))


class Tasks(Scenarios):
    """Several tasks on one population."""

    def run(self, rng: random.Random, out: Path) -> None:
        common = {**BASE, **rng.choice([ALWAYS_ON, {}])}
        tables = {**common, "seed": rng.randrange(2**63), "tasks": {"a": {}, "b": {}}}
        several = SeveralTasks.from_tables(tables, directory=self.folder)
        for _ in range(rng.choice([0, 2, 5, 10])):
            changed = json.loads(json.dumps(tables))
            self._change_task(changed["tasks"], rng)
            with contextlib.suppress(ScenarioError):
                several = SeveralTasks.from_tables(changed, directory=self.folder)
                tables = changed
        try:
            found = run_scenario(several, self.placement(rng), out / "run", on_start=lambda: self.note("simulate"))  # fmt: skip
        except Starved:
            return
        if rng.random() < 0.3:
            again = run_scenario(several, self.placement(rng), out / "again")
            for name, trace in found.traces.items():
                demand(figures_of(again.traces[name]) == figures_of(trace), f"run again, a figure of {name} differs")  # fmt: skip
        audit = audit_tasks(found)
        self.note("audit")
        document = audit.to_json()
        check_document(document)
        composition = audit.composition
        enforced = composition.enforced_rho
        demand(composition.rho <= composition.bound_rho * (1 + 1e-9), "rho above its bound")
        demand(enforced is None or composition.rho <= enforced * (1 + 1e-9), "rho above enforced")
        for each in audit.audits.values():
            check_audit(each)

    def _change_task(self, tasks: dict[str, Any], rng: random.Random) -> None:
        own = tasks[rng.choice(sorted(tasks))]
        key = rng.choice(["starts_days", "weight", "timer_group", "rounds", "participation", "latency", "privacy"])  # fmt: skip
        if key == "starts_days":
            own[key] = rng.choice([0.0, 0.001, 1.0, 2.999])
        elif key == "weight":
            own[key] = rng.choice([5e-324, 1e-9, 1.0, 1e6])
        elif key == "timer_group":
            own[key] = rng.choice(["g", "h"])
        else:
            table = type(getattr(Scenario.from_tables(BASE), key))
            name = rng.choice(list(table.model_fields))
            own.setdefault(key, {})[name] = drawn_key(table, name, key, rng)
            if own[key][name] is None:
                del own[key][name]


ZONES = (None, "UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns")
FORMS = ("none", "iso-z", "iso-offset", "iso", "unix", "milliseconds", "small", "format", "timestamp")  # fmt: skip


class Imports(Valid):
    """Valid logs in every form that is read, imported, audited against a claim and calibrated."""

    def run(self, rng: random.Random, out: Path) -> None:
        options, expected = self._log(rng, out)
        trace = import_log(**options, out=out / "trace")
        self.note("import")
        patterns = read_patterns(trace)
        demand(patterns.participations == expected, f"{patterns.participations} participations of {expected}")  # fmt: skip
        again = import_log(**options, out=out / "again")
        demand(again.digest == trace.digest, "imported again, the digest differs")
        claim = self._claim(rng, trace)
        audit = audit_trace(trace, claim=claim)
        self.note("audit")
        check_audit(audit)
        check_document(privacy_statement(audit).to_json())
        with contextlib.suppress(InputError):  # a claim that states nothing of participation
            write_evidence(audit, out / rng.choice(["e.csv", "e.parquet"]))
            self.note("evidence")
        target = drawn_target(rng)
        mechanism = rng.choice([Tree(), Identity()])
        calibrated = calibrate_trace(trace, mechanism=mechanism, **target)
        self.note("calibrate")
        check_document(calibrated.to_json())
        check_calibrated(calibrated.observed, target.get("epsilon"), target.get("rho"))

    def _claim(self, rng: random.Random, trace: ImportedTrace) -> Claim:
        n = trace.committed_rounds
        claimed: dict[str, Any] = {"mechanism": rng.choice([{"kind": "tree"}, {"kind": "identity"}, {"kind": "blt", "theta": [0.9], "omega": [0.1]}])}  # fmt: skip
        drawn = {
            "rounds": rng.choice([n, n, n + 1, max(1, n - 1)]),
            "min_sep": rng.choice([1, 2, n]),
            "max_participations": rng.choice([1, 2, n]),
            "timer_hours": rng.choice([0.0, 0.5, 5.0, 1e6]),
            "rho": 10 ** rng.uniform(-3, 2),
            "epsilon": 10 ** rng.uniform(-2, 2),
            "delta": 10 ** rng.uniform(-29, -1),
        }
        claimed |= {key: value for key, value in drawn.items() if rng.random() < 0.5}
        z = rng.choice([0.01, 1.0, 1e6, 10 ** rng.uniform(-2, 3)])
        while True:
            try:
                return Claim.model_validate({**claimed, "noise_multiplier": z})
            except ValueError:  # (n, b, k) that contradict each other
                claimed.pop("max_participations")

    def _log(self, rng: random.Random, out: Path) -> tuple[dict[str, Any], int]:
        """Options of the import of a new log, and the number of participations that it must give."""
        is_parquet, form = rng.random() < 0.4, rng.choice(FORMS)
        repeats = rng.choice(["refuse", "refuse", "once", "each"])
        count = rng.choice([1, 2, 5, 12])
        numbers = sorted(rng.sample(range(0, 10 ** rng.choice([2, 6, 9])), count))
        is_renumbered = rng.random() < 0.5
        numbers = numbers if is_renumbered else list(range(count))
        devices = rng.sample(range(10**6), rng.choice([1, 3, 30]))
        pairs = [(device, number) for device in devices for number in numbers if rng.random() < 0.4]
        # Every round has a row, since a log that lacks one would contradict what is said of it.
        pairs += [(devices[0], number) for number in numbers]
        pairs = list(dict.fromkeys(pairs))
        expected = len(pairs)
        if repeats != "refuse":
            more = [pair for pair in pairs if rng.random() < 0.3]
            pairs, expected = pairs + more, expected + (len(more) if repeats == "each" else 0)
        rng.shuffle(pairs)
        start = rng.choice([1_700_000_000, 1_770_000_000, 946_684_801, 4_102_000_000])
        gap = rng.choice([1, 3600, 86_400])
        ranks = {number: rank for rank, number in enumerate(numbers)}
        seconds = [start + gap * ranks[number] + rng.randrange(gap) for _, number in pairs]
        options: dict[str, Any] = {"device_column": "dev", "round_column": "round"}
        options |= {"rounds": None, "renumber": True} if is_renumbered else {"rounds": count}
        options |= {"repeats": repeats}
        columns: dict[str, list[Any]] = {
            "dev": self._names(rng, [device for device, _ in pairs], is_parquet),
            "round": [number for _, number in pairs],
        }
        if rng.random() < 0.2:
            options["device_column"] = ("dev", "site")
            columns["site"] = [f"s{device % 3}" for device, _ in pairs]
        if form != "none":
            times, given = self._times(rng, seconds, form, is_parquet)
            columns["when"] = times
            options |= {"time_column": "when", **given}
        if rng.random() < 0.3:
            columns["state"] = ["taken"] * len(pairs)
            for key in columns:
                columns[key] += [columns[key][0]] * 2
            columns["state"][-2:] = ["late", "lost"]
            options["where"] = ("state=taken",)
        if rng.random() < 0.2:
            for key, value in (("dev", None), ("round", None)):
                for each in columns:
                    columns[each].append(columns[each][0] if each != key else value)
            options["leave_out_invalid"] = True
        return options | self._written(rng, columns, is_parquet, out), expected

    def _names(self, rng: random.Random, devices: list[int], is_parquet: bool) -> list[Any]:
        kind = rng.choice(["whole", "text", "odd", "bytes"] if is_parquet else ["whole", "text", "odd"])  # fmt: skip
        if kind == "whole":
            return list(devices)
        if kind == "bytes":
            return [device.to_bytes(4, "big") for device in devices]
        text = 'd "{}"; é, =1' if kind == "odd" else "phone-{}"
        return [text.format(device) for device in devices]

    def _times(
        self, rng: random.Random, seconds: list[int], form: str, is_parquet: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        moments = [datetime.datetime.fromtimestamp(each, datetime.UTC) for each in seconds]
        plain = [each.replace(tzinfo=None) for each in moments]
        zone = rng.choice(ZONES)
        if form == "iso-z":
            return [f"{each.isoformat(' ')}Z" for each in plain], {}
        if form == "iso-offset":
            shift = datetime.timezone(datetime.timedelta(hours=rng.choice([-12, 0, 5.5, 14])))
            return [each.astimezone(shift).isoformat() for each in moments], {}
        if form == "iso":
            return [each.isoformat() for each in plain], {"time_zone": zone}
        if form == "unix":
            return seconds, {"time_unit": rng.choice([None, "seconds"])}
        if form == "milliseconds":
            return [1000 * each for each in seconds], {"time_unit": rng.choice([None, "milliseconds"])}  # fmt: skip
        if form == "small":
            return [(each - min(seconds)) / 7 for each in seconds], {"time_unit": rng.choice(["seconds", "milliseconds", "nanoseconds"])}  # fmt: skip
        if form == "format" or not is_parquet:
            text = rng.choice(["%d.%m.%Y %H:%M:%S", "%m/%d/%y %H:%M:%S", "%Y%m%d%H%M%S"])
            return [each.strftime(text) for each in plain], {"time_format": text, "time_zone": zone}
        return plain, {"time_zone": zone}

    def _written(
        self, rng: random.Random, columns: dict[str, list[Any]], is_parquet: bool, out: Path
    ) -> dict[str, Any]:
        log = out / ("log.parquet" if is_parquet else "log.csv")
        if is_parquet:
            pq.write_table(pa.table(columns), log, row_group_size=rng.choice([1, 7, 1000]))
            return {"log": log}
        delimiter = rng.choice([None, ";", "\t", "|"])
        separator = delimiter or ","
        lines = [separator.join(columns)]
        for row in zip(*columns.values(), strict=True):
            cells = ["" if each is None else str(each) for each in row]
            quoted = ['"' + each.replace('"', '""') + '"' if each else each for each in cells]
            lines.append(separator.join(quoted if rng.random() < 0.5 or '"' in "".join(cells) else cells))  # fmt: skip
        log.write_text("\n".join(lines) + "\n")
        return {"log": log, "delimiter": delimiter}


def drawn_participation(rng: random.Random, most: int) -> MinSep:
    """(n, b, k) at the edges: one round, every round, once, as often as possible."""
    n = rng.choice([1, 2, 3, rng.randint(1, most), most])
    b = rng.choice([1, 2, n, n + 1, rng.randint(1, n)])
    k = -(-n // b)
    return MinSep(n, b, rng.choice([1, k, k, rng.randint(1, k)]))


class Mechanisms(Valid):
    """Mechanisms of random parameters, evaluated and calibrated at the edges of settings."""

    def run(self, rng: random.Random, out: Path) -> None:
        participation = drawn_participation(rng, rng.choice([16, 100, 300]))
        n, b, k = participation.rounds, participation.min_sep, participation.max_participations
        given = self._mechanism(rng, out, n)
        delta, target = 10 ** rng.uniform(-29, -1), drawn_target(rng)
        sampling = None
        if rng.random() < 0.15 and "epsilon" in target:
            sampling = rng.choice([1e-6, 0.5, 1.0, rng.random()])
        z = rng.choice([0.01, 1e6, 10 ** rng.uniform(-2, 6)])
        (figures,) = evaluate_mechanisms([given], n, b, k, z, delta, sampling).values()
        self.note("evaluate")
        check_figures(figures)
        found = evaluate_mechanisms([given], n, b, k, None, delta, sampling, **target)[str(given)]
        self.note("calibrate")
        check_figures(found)
        (name, most), = target.items()  # fmt: skip
        spent = found.amplified_epsilon if sampling is not None else getattr(found, name)
        demand(spent is not None and spent <= most, f"{name} {spent} misses {most}")
        again = evaluate_mechanisms([given], n, b, k, None, delta, sampling, **target)[str(given)]
        demand(again.to_json() == found.to_json(), "calibrated again, a figure differs")

    def _mechanism(self, rng: random.Random, out: Path, rounds: int) -> Path:
        kind = rng.choice([*FOLLOWING_KINDS, "table", "table", "table"])  # fmt: skip
        if kind != "table":
            return Path(kind)
        from fedray.mechanisms.registry import BISR, BLT, BandFHU, Toeplitz

        table = rng.choice([BLT, BISR, BandFHU, Toeplitz, Tree])
        while True:
            drawn = drawn_table(table, "privacy.mechanism", rng)
            file = out / "mechanism.json"
            file.write_text(json.dumps(drawn))
            try:
                strategy_of(drawn, out)
            except ValueError:
                continue
            return file


def check_figures(figures: Figures) -> None:
    """Figures of a mechanism are finite, and a sensitivity is not below its lower bound."""
    check_document(figures.to_json())
    found = figures.loss.sensitivity
    demand(found.lower_bound is None or found.lower_bound <= found.value * (1 + 1e-9), f"sensitivity {found.value} below {found.lower_bound}")  # fmt: skip


class Designs(Valid):
    """Mechanisms optimised for settings at the edges."""

    def run(self, rng: random.Random, out: Path) -> None:
        kind = rng.choice(KINDS)
        options = RECIPES[kind].options
        participation = drawn_participation(rng, 12)
        n = participation.rounds
        request = MechanismRequest(
            kind,
            participation,
            rng.choice([None, 1, 2]) if "buffers" in options else None,
            rng.choice([None, 1, n]) if "bands" in options else None,
            rng.choice([None, "max", "rms"]),
        )
        found = find_mechanism(request, out / "found.json", lambda _: None)
        self.note("optimise")
        check_figures(found.figures)
        read = evaluate_mechanisms([out / "found.json"], n, participation.min_sep, participation.max_participations, 1.0, 1e-6)  # fmt: skip
        (figures,) = read.values()
        demand(figures.loss.sensitivity.value == found.figures.loss.sensitivity.value, "read back, the sensitivity differs")  # fmt: skip


class Fits(Valid):
    """Habits fitted to small logs, and keys of scenarios to a min-sep."""

    def run(self, rng: random.Random, out: Path) -> None:
        if rng.random() < 0.5:
            self._min_sep(rng)
            return
        kind = rng.choice(["intervals", "check-ins", "participations"])
        days, devices = rng.choice([3, 4, 8]), rng.choice([100, 130])
        lines, share = [], rng.choice([0.3, 0.7, 1.0])
        center, spread = rng.uniform(0, 24), rng.choice([0.0, 1.0, 6.0])
        length = rng.choice([0.02, 1.0, 8.0, 23.0])
        for device in range(devices):
            for day in range(days + 1):
                if rng.random() < share:
                    start = 86_400 * day + 3600 * (center + rng.gauss(0, spread)) % 86_400
                    end = start + 3600 * length * math.exp(rng.gauss(0, 0.5))
                    lines.append(f"{device},{start + 1.7e9},{end + 1.7e9},{day}")
        log = out / "log.csv"
        log.write_text("\n".join(["device,start,end,round", *lines]) + "\n")
        columns = {
            "intervals": RecordColumns(),
            "check-ins": RecordColumns(time="start"),
            "participations": RecordColumns(time="start"),
        }[kind]
        observed = read_observed_log(
            log,
            columns,
            utc_offset_hours=rng.choice([-12.0, 0.0, 14.0]),
            timer_hours=rng.choice([0.0, 24.0]) if kind == "participations" else None,
        )
        self.note("read log")
        fit = fit_habits(observed, fits_offset=kind == "intervals" and rng.random() < 0.3, on_progress=lambda _: self.note("fit"))  # fmt: skip
        self.note("fit")
        check_document(fit.to_json())

    def _min_sep(self, rng: random.Random) -> None:
        scenario = Scenario.from_tables({**BASE, **rng.choice([ALWAYS_ON, {}])})
        overrides = (f"population.devices={rng.choice([300, 1000, 2000])}", f"rounds.count={rng.choice([2, 12, 30])}", f"participation.timer_hours={rng.choice([0.0, 2.0, 12.0])}")  # fmt: skip
        value = scenario.with_overrides(*overrides)
        rounds, timer_hours = value.rounds.count, value.participation.timer_hours or 1.0
        runs = [
            ObservedRun(
                rounds=rounds,
                goal=value.rounds.report_goal,
                timer_hours=timer_hours,
                min_sep=min_sep if min_sep < rounds else None,
                max_participations=rng.choice([2, None]) if min_sep < rounds else 1,
                days=rng.choice([None, 0.5, 9.0]),
            )
            for min_sep in rng.sample([1, 2, 5, 11, 40], rng.choice([1, 2]))
        ]
        fit = fit_min_sep(
            value,
            runs,
            rng.choice(VARIED),
            scale=1.0,
            placement=Placement(1, "in-process"),
            on_progress=lambda _: self.note("fit"),
        )
        check_document(fit.to_json())


class Studies(Valid):
    """Plans and sweeps of small populations."""

    def run(self, rng: random.Random, out: Path) -> None:
        placement = Placement(1, "in-process")
        if rng.random() < 0.4:
            scenario = Scenario.from_tables({**BASE, **ALWAYS_ON})
            smaller = scenario.with_overrides(f"population.devices={rng.choice([100, 300, 2000])}", f"rounds.count={rng.choice([1, 2, 6])}", "rounds.max_days=2.0")  # fmt: skip
            target = PlanTarget(10 ** rng.uniform(-1, 3), 10 ** rng.uniform(-12, -1), 10 ** rng.uniform(-3, 0), 1)  # fmt: skip
            plan = make_plan(smaller, target, rng.choice([[0.0], [2.0], [0.0, 12.0]]), 2, rng.choice([0.5, 1.0]), placement, lambda _: self.note("plan"))  # fmt: skip
            self.note("plan")
            check_document(plan.to_json())
            return
        kinds = rng.sample([kind for kind in KINDS if kind not in ("blt", "banded", "dense")], 2)
        tables: dict[str, Any] = {
            "name": "sweep",
            "mechanisms": [
                {"kind": kind, "made_for": rng.choice([["estimate"], ["truth"]])} for kind in kinds
            ],
            "estimate": {"rounds": 6, "min_sep": rng.choice([1, 3, 6]), "max_participations": 1},
            "y": rng.choice(["rms_loss", "epsilon", "sensitivity", "regret"]),
        }
        scenario = None
        if rng.random() < 0.5:
            scenario = Scenario.from_tables({**BASE, **rng.choice([ALWAYS_ON, {}])})
            hours = rng.sample([0.0, 0.5, 5.0, 500.0], 2)
            tables |= {"scenario": "given", "vary": {"participation.timer_hours": hours}, "x": "participation.timer_hours"}  # fmt: skip
        else:
            rounds = rng.sample([1, 2, 6, 40], 2)
            tables |= {"vary": {"rounds": rounds, "min_sep": [rng.choice([1, 2, 50])], "max_participations": [rng.choice([1, "most"])]}, "x": "rounds"}  # fmt: skip
        sweep = Sweep.model_validate(tables)
        result = run_sweep(sweep, scenario, placement, lambda _: self.note("sweep"))
        self.note("sweep")
        check_document(result.to_json())


def valid_targets(
    folder: Path, make_data: dict[str, Callable[[Path], Any]]
) -> Iterator[tuple[str, float, Valid]]:
    """(name, share of the cases, target) of each."""
    yield "simulations", 0.35, Simulations(folder / "simulations", make_data, is_trained=False)
    yield "trainings", 0.1, Simulations(folder / "trainings", make_data, is_trained=True)
    yield "tasks", 0.1, Tasks(folder / "tasks", make_data)
    yield "imports", 0.2, Imports(folder / "imports")
    yield "mechanisms", 0.17, Mechanisms(folder / "mechanisms")
    yield "designs", 0.03, Designs(folder / "designs")
    yield "fits", 0.02, Fits(folder / "fits")
    yield "studies", 0.03, Studies(folder / "studies")
