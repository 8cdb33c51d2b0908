"""`fedray import --inspect` tells all problems of a log at once, and the command to run next."""

import shlex
from pathlib import Path

import pytest

from fedray.imports.inspected import inspect_log

BAD = """client_id,attempt,timestamp
a,0,2026-03-01T10:00:00
b,0,2026-03-01T10:01:00
,0,2026-03-01T10:02:00
a,1,yesterday
c,1,2026-03-01T09:00:00
c,1,2026-03-01T09:00:05
d,x,2026-03-01T11:00:00
d,3,2026-03-01T12:00:00
f,3,
"""


def test_all_problems_are_told_at_once_with_their_first_rows(
    fedray_command, tmp_path: Path
) -> None:
    log = tmp_path / "bad.csv"
    log.write_text(BAD)
    code, out, _ = fedray_command("import", str(log), "--inspect")
    text = " ".join(out.split())
    assert code == 2
    for expected in [
        "1 row without a device (first: row 3)",
        "1 row with a round that is not an integer (first: row 7)",
        "1 row without a time (first: row 9)",
        "1 value such as 'yesterday' (row 4), which is",
        "the same device in the same round again (first: row 6)",
    ]:
        assert expected in text, expected
    assert list(tmp_path.iterdir()) == [log]
    log.write_text(BAD.replace("yesterday", "2026-03-01T08:00:00"))
    text = " ".join(fedray_command("import", str(log), "--inspect")[1].split())
    assert "taken as UTC; is that so?" in text
    assert "1 round that ended before the round before began (first: round 1, row 4)" in text


def test_the_proposed_command_imports_the_log(fedray_command, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(
        "device;round;time\na;0;2026-03-01T10:00:00Z\na;1;2026-03-05T10:00:00Z\n"
    )
    code, out, _ = fedray_command("import", "log.csv", "--inspect")
    assert code == 0
    command = shlex.split(out.splitlines()[-1].removeprefix("next "))
    assert fedray_command(*command[1:])[0] == 0
    assert Path("log-trace/run.json").is_file()


def test_a_device_with_two_owners_is_told_with_its_first_row_and_refused(
    fedray_command, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("device,round,owner\nb,0,y\na,0,x\na,1,x\nb,1,z\nb,2,y\na,3,w\n")
    code, out, _ = fedray_command("import", str(log), "--inspect")
    assert code == 2
    assert "2 devices with two or more owners (first: row 4)" in " ".join(out.split())
    columns = [f"--column={role}={role}" for role in ("device", "round", "owner")]
    code, _, err = fedray_command(
        "import", str(log), *columns, "--rounds=logged", "--out", str(tmp_path / "t")
    )
    assert code == 2
    assert "has the owners" in err
    log.write_text("device,round,owner\nb,0,y\na,0,x\na,1,x\nb,1,y\n")
    assert inspect_log(log, {}).is_importable


def test_rounds_without_a_time_have_no_place_in_the_order(tmp_path: Path) -> None:
    """Round 1 has no time: round 2 is compared with round 0."""
    log = tmp_path / "log.csv"
    log.write_text("device,round,time\na,0,100\nb,1,\nc,2,200\n")
    assert not any(
        "ended before" in each for each in inspect_log(log, {}, time_unit="seconds").notes
    )
    log.write_text("device,round,time\na,0,300\nb,1,\nc,2,200\n")
    (note,) = (
        each for each in inspect_log(log, {}, time_unit="seconds").notes if "ended before" in each
    )
    assert "1 round that ended before the round before began (first: round 2, row 3)" in note


def test_what_is_said_about_rows_is_passed_on_to_the_command(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-x.csv").write_text("device,round\na,0\na,0\n,1\nb,2\n")
    given = ("--inspect", "--repeats", "once", "--leave-out-invalid")
    code, out, _ = fedray_command("import", *given, "--", "-x.csv")
    text = " ".join(out.split())
    assert code == 0
    assert "1 row without a device (first: row 3), left out" in text
    assert "--repeats each" not in text
    command = shlex.split(out.splitlines()[-1].removeprefix("next "))
    assert {"--leave-out-invalid", "once", "--out=-x-trace"} <= {*command}
    assert fedray_command(*command[1:])[0] == 0
    assert Path("-x-trace/run.json").is_file()


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        ("installation_id,iteration,event_time", ["device", "round", "time"]),
        ("client_id,roundNumber,eventTime", ["device", "round", "time"]),
        ("userid,attempt,datetime,update,uptime,timer_hours,valid", ["device", "round", "time"]),
        ("PHONE,ROUND,update,personal", ["device", "round"]),
    ],
)
def test_roles_are_guessed_from_whole_words(tmp_path: Path, names: str, roles: list[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text(f"{names}\n{','.join('1' for _ in names.split(','))}\n")
    guessed = [each[-1] for each in inspect_log(log, {}).columns]
    assert guessed == roles + [""] * (len(guessed) - len(roles))
