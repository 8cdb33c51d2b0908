"""`fedray import --inspect` tells all problems of a log at once, and the command to run next."""

import shlex
from pathlib import Path

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
