"""Every night: a log grows, its claim goes from kept to in danger to lost, and everybody who must know does."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedray.audit.live.nights import History, history_with
from fedray.audit.live.outlook import Night, Row, State
from fedray.base.errors import InputError
from fedray.runtime.gauges import CLAIM, OF_A_CLAIM, exposition

ROOT = Path(__file__).resolve().parents[2]
HOUR = 3600
STARTS = [HOUR * each for each in (*range(24), *range(24, 72, 3))]
"""Seconds at which rounds start: every hour on the first day, and every three hours on the next two."""
RELEASED = {1: 24, 2: 32, 3: 40}
"""Released rounds after each day."""
CLAIM_FILE = """
mechanism = "identity"
noise_multiplier = 3.0
timer_hours = 11.9
rho = 0.2222222222222223
"""
"""Four participations: as many as 48 rounds allow if 11.9 hours are 12 rounds."""
LINE = re.compile(
    r"# HELP (?P<help>[a-z_:][\w:]*) [^\n]+\n# TYPE (?P<type>[a-z_:][\w:]*) gauge\n"
    r'(?P<name>[a-z_:][\w:]*)\{trace="(?P<trace>(?:[^"\\\n]|\\[\\"n])*)",claim="claim.toml"\} (?P<value>-?[\d.]+(?:e[+-]?\d+)?)\n'
)
"""A gauge in the text format of Prometheus, which allows more."""


def write_day(folder: Path, day: int) -> None:
    """Writes the log of one day: a device takes part every 12 hours, others once."""
    rounds = range(RELEASED.get(day - 1, 0), RELEASED[day])
    rows, last = ["device,round,at"], -12 * HOUR
    for index in range(rounds.stop):
        start = STARTS[index]
        is_back = start - last >= 12 * HOUR
        last = start if is_back else last
        if index in rounds:
            # Times of the log have a step of a second.
            names = (f"once{index}", *("eager",) * is_back)
            for later, name in enumerate(names):
                at = datetime.fromtimestamp(1_770_000_000 + start + later, UTC).isoformat()
                rows.append(f"{name},{index},{at}")
    folder.mkdir(exist_ok=True)
    (folder / f"day{day}.csv").write_text("\n".join(rows) + "\n")


def cron_line() -> str:
    """The line of docs/live.md, without its time and folder, for a log of 48 planned rounds."""
    text = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
    found = re.search(r'```text title="crontab"\n30 2 \* \* \* cd /srv/live && (.+)\n```', text)
    assert found is not None
    assert found[1].count("--until 2000") == found[1].count("--rounds 2000") == 1
    line = found[1].replace("2000", "48")
    return line.replace("fedray ", f"{shlex.quote(sys.executable)} -m fedray ")


def values_of(file: Path) -> dict[str, float]:
    """The gauges of a file, which has nothing else."""
    text = file.read_text()
    found = list(LINE.finditer(text))
    assert "".join(each[0] for each in found) == text
    assert all(each["help"] == each["type"] == each["name"] for each in found)
    assert {each["trace"] for each in found} == {"live"}
    return {each["name"].removeprefix("fedray_claim_"): float(each["value"]) for each in found}


@pytest.mark.slow
def test_three_nights_of_the_documented_line_see_a_claim_endangered_and_lost(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """As `ray job submit` passes the line on: joined by subprocess.list2cmdline, for a shell."""
    monkeypatch.chdir(tmp_path)
    Path("claim.toml").write_text(CLAIM_FILE)
    Path("in-force.toml").write_text("timer_hours = 11.9\n")
    write_day(Path("log"), 1)
    columns = ("--column", "device=device", "--column", "round=round", "--column", "time=at")
    first = ("import", "log", "--append", "live", *columns, "--rounds", "logged")
    assert fedray_command(*first)[0] == 0
    states = []
    for day, expected in ((1, 0), (2, 1), (3, 1)):
        write_day(Path("log"), day)
        line = cron_line().replace("--history", f"--night 2026-11-0{day} --history")
        command = subprocess.list2cmdline(["sh", "-c", line])
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert done.returncode == expected, done.stdout + done.stderr
        nights = [json.loads(each) for each in Path("nights.jsonl").read_text().splitlines()]
        assert [each["night"] for each in nights] == [f"2026-11-0{each + 1}" for each in range(day)]
        assert nights[-1]["released"] == RELEASED[day]
        states.append(nights[-1]["state"])
        values = values_of(Path("fedray.prom"))
        assert values["state"] == ("kept", "in danger", "lost").index(states[-1])
        assert values["spent_rho"] == pytest.approx(nights[-1]["spent"]["rho"])
        assert values["forward_max_participations"] >= values["spent_max_participations"]
        page = Path("live.html").read_text()
        assert all(f"2026-11-0{each + 1}" in page for each in range(day))
        assert Path("forecast.html").exists()
    assert states == ["kept", "in danger", "lost"]
    # A file of the log that changed is bad input, which is no verdict: nothing is overwritten.
    before = Path("nights.jsonl").read_bytes(), Path("fedray.prom").read_bytes()
    (Path("log") / "day1.csv").write_text("device,round,at\n")
    done = subprocess.run(cron_line(), shell=True, capture_output=True, text=True)
    assert done.returncode == 2, done.stdout
    assert (Path("nights.jsonl").read_bytes(), Path("fedray.prom").read_bytes()) == before


def night(
    day: str = "2026-11-01", released: int = 10, delta: float = 1e-10, state: State = State.KEPT
) -> Night:
    spent, forward, claimed = (
        Row(name, released, 3, 2, 1.0, True, "", 0.1, 2.0)
        for name in ("spent", "forward", "claimed")
    )
    return Night(day, "d" * 64, "c" * 64, state, released, 100, delta, spent, forward, claimed)


def recorded(file: Path, added: Night) -> History:
    history = history_with(file, added)
    history.write(file)
    return history


def test_the_same_night_twice_has_one_line_unless_state_or_rules_differ(tmp_path: Path) -> None:
    file = tmp_path / "nights.jsonl"
    recorded(file, night("2026-11-02", 20))
    # A key of a later release, and another order of the nights.
    with file.open("a") as stream:
        stream.write(json.dumps({**night("2026-11-01").to_json(), "more": 1}) + "\n")
    recorded(file, night("2026-11-02", 21))
    # Another state or other rules have a line of their own.
    lost = night("2026-11-02", 22, state=State.LOST)
    ruled = replace(lost, rules=("at most 10 participations of a device",))
    recorded(file, lost)
    nights = recorded(file, ruled).nights
    assert nights == (night(), night("2026-11-02", 21), lost, ruled)
    lines = file.read_text().splitlines()
    assert json.loads(lines[0])["more"] == 1
    assert [json.loads(each)["released"] for each in lines] == [10, 21, 22, 22]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (night("2026-10-31", 11).to_json(), "has 11 rounds on 2026-10-31 and 10 on 2026-11-01"),
        (night("2026-10-31", delta=1e-6).to_json(), "cannot be compared"),
        ({**night().to_json(), "state": "fine"}, "wrong line 1 (state: "),
        ({**night().to_json(), "night": "yesterday"}, "wrong line 1 (Invalid isoformat"),
        ([], "wrong line 1 (the line: "),
    ],
)
def test_a_history_that_is_damaged_or_of_another_deployment_stays_as_it_is(
    tmp_path: Path, content: object, said: str
) -> None:
    file = tmp_path / "nights.jsonl"
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=re.escape(said)):
        history_with(file, night())
    assert json.loads(file.read_text()) == content


def test_labels_and_values_of_gauges_are_those_of_the_text_format() -> None:
    text = exposition(CLAIM, {"trace": 'a\n"b"\\c'}, OF_A_CLAIM, {"round": 3, "other": 1})
    (_, _, gauge) = text.splitlines()
    assert gauge == r'fedray_claim_round{trace="a\n\"b\"\\c"} 3.0'


def test_every_figure_of_a_night_has_a_described_gauge() -> None:
    assert {*night().gauges, "judged_seconds"} == OF_A_CLAIM.keys()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--history", "n.jsonl"), "give --until ROUNDS too"),
        (("--gauges", "f.prom"), "give --until ROUNDS too"),
        (("--until", "34", "--night", "2026-11-01"), "give --history FILE too"),
        (("--until", "34", "--history", "n.jsonl", "--night", "1 Nov"), "such as 2026-11-29"),
    ],
)
def test_options_of_a_night_that_do_not_fit_are_refused(
    small, trace_of, tmp_path: Path, monkeypatch, fedray_command, options, said: str
) -> None:
    path = str(trace_of([[0]], 1, small()).path)
    monkeypatch.chdir(tmp_path)
    Path("claim.toml").write_text(CLAIM_FILE)
    code, _, err = fedray_command("audit", path, "--claim", "claim.toml", *options)
    assert code == 2
    assert said in err
