"""A folder of executables, one file for each key.

Any number of processes may use one folder at a time: a file appears whole or not at all. A file
that cannot be used is compiled anew and replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from poptorch_emu.compile.executable import Executable
from poptorch_emu.compile.stored.container import pack, unpack, write_whole
from poptorch_emu.compile.stored.executable_file import from_sections, is_of_key, to_sections
from poptorch_emu.compile.stored.key import Key
from poptorch_emu.config import CompileConfig
from poptorch_emu.errors import Error, require
from poptorch_emu.log import logger
from poptorch_emu.trace.tracer import Forward
from poptorch_emu.troubleshooting import Topic

_SUFFIX = ".executable"


def path_of(cache_dir: str, key: Key) -> Path:
    """Returns where the executable of `key` is kept."""
    return Path(cache_dir) / f"{key.digest}{_SUFFIX}"


def find(key: Key, config: CompileConfig, forward: Forward) -> Executable | None:
    """Returns the executable of `key` from the folder of `config`, or `None` if it has none.

    A damaged file is reported and not used.
    """
    if config.cache_dir is None:
        return None
    path = path_of(config.cache_dir, key)
    try:
        container = unpack(path.read_bytes(), str(path))
        if container.is_of_this_version and is_of_key(container.sections, key):
            executable = from_sections(container.sections, key, config, forward)
            logger.info("Executable cache: loaded %s", path)
            return executable
    except FileNotFoundError:
        pass
    except (Error, OSError) as fault:
        logger.warning("Executable cache: %s cannot be used and will be replaced. %s", path, fault)
    logger.info("Executable cache: there is no %s yet", path)
    return None


def keep(executable: Executable) -> None:
    """Puts an executable into the folder of its options, if they name one.

    Where that fails, a warning says so.
    """
    config = executable.config
    cache_dir = config.cache_dir
    if cache_dir is None:
        return
    path = path_of(cache_dir, executable.key)
    try:
        write_whole(path, pack(to_sections(executable)))
        logger.info("Executable cache: wrote %s", path)
    except (Error, OSError) as fault:
        logger.warning("Executable cache: this model is not kept. %s", fault)


@contextlib.contextmanager
def only_one(cache_dir: str | None, key: Key, num_processes: int) -> Iterator[None]:
    """Lets one process of several compile a key; the others wait, and find what it has kept.

    The system holds the lock and drops it when its holder dies.
    """
    if cache_dir is None or num_processes == 1:
        yield
        return
    with open(path_of(cache_dir, key).with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def check_folder(cache_dir: str | None) -> None:
    """Makes the folder of the cache if there is none.

    Raises:
        AssertionError: it cannot be made, or takes no files.
    """
    if cache_dir is None:
        return
    with contextlib.suppress(OSError):
        Path(cache_dir).mkdir(parents=True, exist_ok=True)
    is_writable = Path(cache_dir).is_dir() and os.access(cache_dir, os.W_OK | os.X_OK)
    require(
        is_writable,
        f"Cache folder {cache_dir} is not writable: expected a directory in which files can be "
        "made. Give enableExecutableCaching() or POPTORCH_CACHE_DIR another one; "
        f"{Topic.CACHE_FOLDER}",
    )
