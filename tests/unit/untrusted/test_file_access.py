"""Files in places where others may write: opening never blocks and follows no links."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from poptorch_emu.untrusted.files import (
    given_path,
    open_lock,
    open_regular,
    read_own,
    write_named,
    write_whole,
)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.with_name("target").write_bytes(b"of another")
    path.symlink_to("target")


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def lost_link(path: Path) -> None:
    path.symlink_to("nowhere")


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        # Paths of sockets are short.
        folder = os.open(path.parent, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def file_of_another(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("Only root can make a file of another user.")
    path.write_bytes(b"of another")
    os.chown(path, 54321, -1)


OTHERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (fifo, "is a FIFO"),
    "link": (link, "is a link"),
    "link to a device": (link_to_device, "is a link"),
    "link to nothing": (lost_link, "is a link"),
    "socket": (listener, "is a socket"),
    "directory": (Path.mkdir, "directory"),
    "another user": (file_of_another, "is a file of user 54321"),
}


@pytest.mark.parametrize(("make", "text"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("use", [read_own, open_lock])
def test_file_when_it_is_something_else_then_refuses_at_once(use, make, text, tmp_path) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(OSError, match=text):
        use(path)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("make", "text"), [OTHERS["fifo"], OTHERS["link to a device"], OTHERS["socket"]]
)
def test_file_that_the_user_names_when_it_is_no_regular_one_then_refuses(make, text, tmp_path):
    path = tmp_path / "file"
    make(path)
    with pytest.raises(OSError, match=text.replace("a link", "a device")):
        open_regular(path)


def test_file_that_the_user_names_then_links_are_followed(tmp_path) -> None:
    link(tmp_path / "file")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"of another"


def test_own_file_then_its_content(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    assert read_own(tmp_path / "file") == b"mine"
    with pytest.raises(FileNotFoundError):
        read_own(tmp_path / "other")


def test_lock_then_keeps_what_is_in_it_and_is_for_nobody_else(tmp_path) -> None:
    with open_lock(tmp_path / "made"):
        assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o600
    (tmp_path / "file").write_bytes(b"mine")
    with open_lock(tmp_path / "file"):
        assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("make", [fifo, link, link_to_device, lost_link, listener])
def test_write_when_something_else_is_there_then_replaces_it(make, tmp_path) -> None:
    path = tmp_path / "file"
    make(path)
    write_whole(path, b"mine")
    assert read_own(path) == b"mine"
    target = tmp_path / "target"
    assert not target.exists() or target.read_bytes() == b"of another"


def test_write_when_several_do_then_the_file_is_whole_at_every_look(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    contents = [bytes([letter]) * 300_000 for letter in b"abc"]
    write_whole(path, contents[0])
    writers = [
        Thread(target=lambda content=content: [write_whole(path, content) for _ in range(40)])
        for content in contents
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    for writer in writers:
        writer.join()
    assert [file.name for file in tmp_path.iterdir()] == ["shared"]


def test_write_when_it_fails_then_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "taken", b"data")
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_path_with_a_character_that_no_path_has_then_refused_by_name() -> None:
    assert given_path("folder", "cache") == given_path(Path("folder"), "cache") == Path("folder")
    with pytest.raises(ValueError, match=r"cache is 'a\\x00b', .* a NUL character. Remove it"):
        given_path("a\0b", "cache")
    with pytest.raises(ValueError, match=r"cache is 'a\\ud800', .* the character '\\ud800'"):
        given_path("a\ud800", "cache")
    with pytest.raises(TypeError, match="cache is 3 of type int, but must be a str or a pathlib"):
        given_path(3, "cache")


def test_content_that_is_named_by_a_link_then_the_file_behind_it_is_replaced(tmp_path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_named(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"new"
    write_named(Path(os.devnull), b"nothing")
    assert not Path(os.devnull).is_file()
