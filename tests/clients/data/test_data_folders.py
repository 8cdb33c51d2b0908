"""Every file of a folder of data is read, is a known mark, or is named in a refusal."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_folders import SEEDS, Folder, check_outcomes, data_rows, drawn_data

from fedray.base.errors import InputError
from fedray.clients.data.factory import source_of
from fedray.clients.data.readers.parquet import ParquetFiles
from fedray.scenario import Scenario


def scenario_with(folder: Folder) -> Scenario:
    tables = {
        "population": {"devices": 1000},
        "rounds": {"count": 2, "report_goal": 10},
        "training": {"enabled": False},
        "data": {
            "kind": "parquet",
            "file": folder.path.name,
            "client": "user",
            "inputs": "x",
            "targets": "y",
        },
    }
    return Scenario.from_tables(tables, directory=folder.path.parent)


def outcome_of(folder: Folder, _: Path) -> str:
    """What came of opening data: "read" as its twin reads it, or "refused" by name; anything else fails."""
    wanted = data_rows(folder)
    try:
        scenario = scenario_with(folder)
        source = source_of(scenario)
    except InputError as error:
        message = str(error)
        assert "\n" not in message
        assert folder.refusals, message
        assert any(name in message for name in folder.names), message
        return "refused"
    assert not folder.refusals
    splits = {split for split, _ in wanted}
    test = sum(split == "test" for split, _ in wanted) or source.held_out_devices
    assert source.held_out_devices == test
    assert source.people(scenario)["clients"] + test == len(wanted)
    assert splits in ({""}, {"train"}, {"train", "test"})
    reader = ParquetFiles.of(scenario.data)
    found = {}
    for client in reader.clients():
        columns = reader.read(client, ["x", "y"])
        xs = [np.asarray(each).tolist() for each in columns["x"]]
        found[client.split, client.name] = [*zip(xs, np.asarray(columns["y"]).tolist(), strict=True)]  # fmt: skip
    if splits == {"train"}:
        wanted = {("train", user): rows for (_, user), rows in wanted.items()}
    assert found == wanted
    return "read"


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS)
def test_a_folder_of_data_is_read_as_pyarrow_reads_each_of_its_files_or_refused_by_name(
    first: int, tmp_path: Path
) -> None:
    check_outcomes(first, tmp_path, drawn_data, outcome_of)


def write_users(file: Path, users: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    names = [user for user in users for _ in range(6)]
    inputs = [[place % 3 / 2, place % 5 / 4] for place in range(len(names))]
    columns = {"user": names, "x": inputs, "y": [place % 3 for place in range(len(names))]}
    pq.write_table(pa.table(columns), file)


def test_every_user_of_a_folder_is_read_whatever_its_files_are_called(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    write_users(folder / "part-0.parquet", [f"u{number:02}" for number in range(20)])
    write_users(folder / "part-1.parquet.gzip", [f"v{number:02}" for number in range(20)])
    write_users(tmp_path / "store" / "part-2.parquet", [f"w{number:02}" for number in range(20)])
    (folder / "linked").symlink_to("../store")
    scenario = scenario_with(Folder(folder))
    source = source_of(scenario)
    assert source.people(scenario)["clients"] + source.held_out_devices == 60
    # The digest is that of the files that are read.
    (folder / "_SUCCESS").touch()
    assert scenario_with(Folder(folder)).digest == scenario.digest
    write_users(tmp_path / "store" / "part-3.parquet", ["x"])
    assert scenario_with(Folder(folder)).digest != scenario.digest


@pytest.mark.parametrize(
    ("name", "says"),
    [("extra.parquet", "'extra.parquet' is in no split, but other files are"), ("README.md", "'README.md' is not Parquet; convert or remove it")],
)  # fmt: skip
def test_a_file_beside_the_splits_is_refused(name: str, says: str, tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    for split in ("train", "test"):
        write_users(folder / split / "2026" / "part-0.parquet", [f"{split}{n}" for n in range(9)])
    assert source_of(scenario_with(Folder(folder))).held_out_devices == 9
    if name == "README.md":
        (folder / name).write_text("# Where this is from\n")
    else:
        write_users(folder / name, ["someone"])
    with pytest.raises(InputError, match=says):
        source_of(scenario_with(Folder(folder)))
