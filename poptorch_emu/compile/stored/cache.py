"""A folder of executables, one file for each key.

Any number of processes may use one folder at the same time, because a file appears whole or not at
all. A file that cannot be used is compiled again and replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from poptorch_emu.compile.executable import Executable
from poptorch_emu.compile.stored import folder
from poptorch_emu.compile.stored.executable_file import from_sections, is_of_key, to_sections
from poptorch_emu.compile.stored.key import Key
from poptorch_emu.config import CompileConfig
from poptorch_emu.errors import Error
from poptorch_emu.log import logger
from poptorch_emu.trace.capture.tracer import Forward
from poptorch_emu.untrusted.files import open_lock

_SUFFIX = ".executable"


def path_of(cache_dir: str, key: Key) -> Path:
    """Returns the path of the executable of `key`."""
    return Path(cache_dir) / f"{key.digest}{_SUFFIX}"


def find(key: Key, config: CompileConfig, forward: Forward) -> Executable | None:
    """Returns the executable of `key` from the cache's folder, or None if it has none.

    A damaged file is ignored with a warning.
    """
    if config.cache_dir is None:
        return None
    path = path_of(config.cache_dir, key)
    sections = folder.read(path)
    if is_of_key(sections, key):
        try:
            executable = from_sections(sections, key, config, forward)
            logger.info("Executable cache: loaded %s", path)
            return executable
        except Error as fault:
            folder.warn_of_file(path, fault)
    logger.info("Executable cache: there is no %s yet", path)
    return None


def keep(executable: Executable) -> None:
    """Writes an executable to the folder of its options, if they name one.

    A failure causes a warning.
    """
    if executable.config.cache_dir is None:
        return
    path = path_of(executable.config.cache_dir, executable.key)
    try:
        sections = to_sections(executable)
    except Error as fault:
        logger.warning("Executable cache: the compiled model is not stored. %s", fault)
        return
    if folder.write(path, sections):
        logger.info("Executable cache: wrote %s", path)


@contextlib.contextmanager
def only_one(cache_dir: str | None, key: Key, num_processes: int) -> Iterator[None]:
    """Lets one of several processes compile a key. The others wait and load its file.

    The operating system holds the lock, and frees it when the process dies.

    Raises:
        AssertionError: the folder is not writable.
    """
    if num_processes > 1 and cache_dir is None:
        logger.warning(
            "Use poptorch.Options.enableExecutableCaching() to avoid compiling the model once per "
            "process: each of the %d compiles it now.",
            num_processes,
        )
    if cache_dir is None or num_processes == 1:
        yield
        return
    path = path_of(cache_dir, key).with_suffix(".lock")
    with contextlib.ExitStack() as held:
        try:
            fcntl.flock(held.enter_context(open_lock(path)), fcntl.LOCK_EX)
        except OSError as fault:
            consequence = (
                "One of several processes compiles the model while the others wait for it, "
                "which needs a lock file in this folder."
            )
            text = folder.text_of_folder(path.parent, fault, consequence)
            raise AssertionError(text) from fault
        yield


def make_folder(cache_dir: str | None) -> None:
    """Makes the folder of the cache if it does not exist; after a failure nothing is stored."""
    if cache_dir is not None:
        with contextlib.suppress(OSError):
            Path(cache_dir).mkdir(parents=True, exist_ok=True)
