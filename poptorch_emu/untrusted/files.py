"""Opens and writes regular files only, at paths where another user may have put something else.

A FIFO blocks the process that opens it, a device yields bytes without end, and a link leads to
another file.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Flags, so that opening a FIFO does not block and a terminal does not become the process's own.
_CAREFUL = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class NotRegularError(OSError):
    """Raised if a path leads to something other than a regular file of the user."""


def given_path(path: str | os.PathLike[str], name: str) -> Path:
    """Returns the user's path as a `Path`.

    Args:
        path: path from the user.
        name: name of the argument, for the error message.

    Raises:
        TypeError: `path` is neither a string nor a path.
        ValueError: `path` has a character that no path can contain.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"{name} is {path!r} of type {type(path).__name__}, but must be a str or a pathlib.Path"
        )
    try:
        if b"\0" not in os.fsencode(path):
            return Path(path)
        fault = "a NUL character"
    except UnicodeEncodeError as error:
        fault = f"the character {error.object[error.start]!r}"
    raise ValueError(f"{name} is {str(path)!r}, but no path can have {fault}. Remove it.")


def read_own(path: Path) -> bytes:
    """Returns the content of a regular file that belongs to the user of this process.

    Raises:
        OSError: the file does not exist, or the path leads to something else.
    """
    with _opened(path, os.O_RDONLY | os.O_NOFOLLOW, "rb", must_be_own=True) as file:
        return file.read()


def open_regular(path: Path) -> BinaryIO:
    """Returns a regular file that the user has named, opened for reading; follows links.

    Raises:
        OSError: the file does not exist, or the path leads to something else.
    """
    return _opened(path, os.O_RDONLY, "rb", must_be_own=False)


def open_lock(path: Path) -> BinaryIO:
    """Returns a file of the user for locking, which is created if missing; writes nothing.

    Raises:
        OSError: the file cannot be created, or the path leads to something else.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    return _opened(path, flags, "r+b", must_be_own=True)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file atomically: readers see either the whole new file or the old one.

    An existing file or other object at the path is replaced and never written to.

    Raises:
        OSError: the folder cannot be written to.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with replacing(path) as temporary, os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
        file.write(data)


def write_named(path: Path, content: str | bytes) -> None:
    """Writes a file that the user has named, whole or not at all; follows links.

    A device or a pipe is written to and never replaced.

    Raises:
        OSError: the folder cannot be written to, or the disk is full.
    """
    target, data = path.resolve(), content.encode() if isinstance(content, str) else content
    if target.exists() and not target.is_file():
        target.write_bytes(data)
    else:
        write_whole(target, data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path, whose file replaces `path` if the block raises nothing.

    Raises:
        OSError: the folder cannot be written to.
    """
    temporary = path.with_name(f".{secrets.token_hex(12)}.unfinished")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _opened(path: Path, flags: int, mode: str, *, must_be_own: bool) -> BinaryIO:
    try:
        # Mode 0o600, because anyone who can open a lock file can also hold the lock.
        descriptor = os.open(path, flags | _CAREFUL, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW and path.is_symlink():
            raise _refusal(path, "a link") from None
        if error.errno == errno.ENXIO:
            raise _refusal(path, "a socket") from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _refusal(path, _KINDS[stat.S_IFMT(status.st_mode)])
        if must_be_own and status.st_uid != os.geteuid():
            raise _refusal(path, f"a file of user {status.st_uid}")
        return os.fdopen(descriptor, mode)  # type: ignore[return-value]
    except BaseException:
        os.close(descriptor)
        raise


def _refusal(path: Path, found: str) -> NotRegularError:
    text = f"{path} is {found}, where a regular file of yours should be. Remove it."
    return NotRegularError(text)
