"""Files of strangers are opened only if they are regular, in their place, and of a bounded size."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fedray.base.regular_file import check_regular_file, open_regular_file, read_regular_file


def make_pipe(file: Path) -> None:
    os.mkfifo(file)


def make_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(file))


def make_link_to_a_device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def make_link_out(file: Path) -> None:
    outside = file.parent.parent / "outside"
    outside.write_bytes(b"secret")
    file.symlink_to(outside)


def make_link_to_itself(file: Path) -> None:
    file.symlink_to(file)


def make_large_and_sparse(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(1 << 40)


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (make_pipe, "it is a pipe"),
    "socket": (make_socket, "it is a socket"),
    "directory": (Path.mkdir, "it is a directory"),
    "device": (make_link_to_a_device, "it leads out of"),
    "link out": (make_link_out, "it leads out of"),
    "link to itself": (make_link_to_itself, "symbolic links"),
    "large": (make_large_and_sparse, "it has more than 10 bytes"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_is_not_regular_inside_and_small_is_refused(kind: str, tmp_path: Path) -> None:
    make, reason = REFUSED[kind]
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder / "file")
    for refuse in (
        lambda: open_regular_file(folder / "file", inside=folder, most_bytes=10),
        lambda: read_regular_file(folder / "file", 10, inside=folder),
        lambda: check_regular_file(folder / "file", inside=folder, most_bytes=10),
    ):
        with pytest.raises(OSError, match=reason):
            refuse()


def test_a_regular_file_is_read_through_links_that_stay_inside(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"0123456789")
    (folder / "link").symlink_to("file")
    (tmp_path / "alias").symlink_to(folder)
    assert read_regular_file(tmp_path / "alias" / "link", 10, inside=folder) == b"0123456789"
    assert read_regular_file(folder / "link", 10, inside=tmp_path / "alias") == b"0123456789"


def test_a_file_without_a_stated_size_is_read_within_the_bound() -> None:
    # Files of /proc say that they are empty.
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular_file(Path("/proc/self/maps"), 4)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_path_that_no_file_can_have_is_an_os_error(name: str) -> None:
    with pytest.raises(OSError, match="path is invalid"):
        check_regular_file(Path(name))


def test_a_device_is_refused_wherever_it_lies() -> None:
    with pytest.raises(OSError, match="it is a device"):
        read_regular_file(Path("/dev/zero"), 10)
