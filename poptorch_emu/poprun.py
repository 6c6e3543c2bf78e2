"""`poprun`: starts a program in several processes, on one host or on many (exact).

The launcher holds the store through which the processes find each other and report failures. It
ends when all processes have ended, reports which failed first, and leaves no process behind.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence

from poptorch_emu.distributed.instances import Instance, plan_instances
from poptorch_emu.distributed.launcher import Launcher
from poptorch_emu.errors import Error, make_error
from poptorch_emu.log import logger
from poptorch_emu.version import __version__

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Options that concern real machines; they are accepted and logged.
_WITHOUT_EFFECT = (
    "--vipu-server-host", "--vipu-server-port", "--vipu-server-timeout", "--vipu-partition",
    "--vipu-allocation", "--vipu-cluster", "--update-partition", "--remove-partition",
    "--reset-partition", "--num-ilds", "--mpi-global-args", "--sync-type", "--topology",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the status of the process that failed first.

    `--only-output-from-instance`, `--executable-cache-path`, `--numa-aware` and the other options
    are those of PopRun; options that concern real machines are accepted.
    """
    parser = _parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unknown options: {' '.join(unknown)}")
    if not given.command:
        parser.error("name the program to run, and its arguments, after the options")
    _log_unused(given)
    try:
        hosts = given.host.split(",") if given.host else ["localhost"]
        instances = plan_instances(
            _num_instances(given, hosts),
            given.num_replicas,
            given.ipus_per_replica,
            hosts,
            given.instances_per_host,
        )
        _check_shown(given.only_output_from_instance, instances)
        return Launcher(
            with_runner(given.command),
            instances,
            environment=_environment(given),
            start_command=_words("--start-command", given.start_command),
            only_output_from=given.only_output_from_instance,
            is_numa_aware=given.numa_aware == "yes",
            is_verbose=given.verbose > 0,
        ).run()
    except Error as error:
        print(f"poprun: {error.message}", file=sys.stderr)
        return 2


def _num_instances(given: argparse.Namespace, hosts: Sequence[str]) -> int:
    if given.num_instances is not None:
        return int(given.num_instances)
    return len(hosts) * (given.instances_per_host or 1)


def with_runner(command: Sequence[str]) -> list[str]:
    """Returns the command with this package's runner, so that programs find PopTorch's names.

    A command that is neither Python nor a Python file is returned unchanged.
    """
    first = os.path.basename(command[0])
    if first.startswith("python"):
        options = 1
        while options < len(command) and command[options] in ("-u", "-B", "-O", "-E", "-s"):
            options += 1
        return [*command[:options], "-m", "poptorch_emu", *command[options:]]
    if first.endswith(".py"):
        return [sys.executable, "-m", "poptorch_emu", *command]
    return list(command)


def _check_shown(index: int | None, instances: Sequence[Instance]) -> None:
    if index is not None and not 0 <= index < len(instances):
        raise make_error(
            f"--only-output-from-instance names instance {index}, but they are numbered from 0 to "
            f"{len(instances) - 1}."
        )


def _environment(given: argparse.Namespace) -> dict[str, str]:
    """Returns the environment variables that all instances receive, apart from their identity."""
    found = {}
    if given.executable_cache_path:
        found["POPTORCH_CACHE_DIR"] = os.path.abspath(given.executable_cache_path)
    words = _words("--mpi-local-args", given.mpi_local_args or "")
    for option, value in zip(words, words[1:], strict=False):
        if option == "-x":
            name, has_value, text = value.partition("=")
            if not _NAME.fullmatch(name):
                raise make_error(
                    f"--mpi-local-args: -x takes NAME or NAME=VALUE, but '{name}' is not a valid "
                    "name of an environment variable."
                )
            found[name] = text if has_value else os.environ.get(name, "")
    others = [word for index, word in enumerate(words) if word != "-x" and words[index - 1] != "-x"]
    if others:
        logger.warning(
            "poprun: --mpi-local-args: only -x is supported; %s is ignored.", " ".join(others)
        )
    return found


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise make_error(
            f"{option} is '{text}', which cannot be split into arguments as a shell does: {error}."
        ) from None


def _log_unused(given: argparse.Namespace) -> None:
    for option in _WITHOUT_EFFECT:
        value = getattr(given, option.strip("-").replace("-", "_"))
        if value is not None:
            logger.info("poprun: %s=%s has no effect: there are no real machines.", option, value)
    if given.print_topology == "yes":
        logger.info("poprun: --print-topology has no effect: there are no real machines.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="poprun", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--version", action="version", version=f"poptorch_emu {__version__}")
    add("--num-instances", type=int, help="number of processes (default: one for each host)")
    add("--num-replicas", type=int, help="number of all replicas (default: one for each process)")
    add("--ipus-per-replica", type=int, default=1, help="IPUs of each replica (default: 1)")
    add("--host", help="names of the hosts, separated by commas (default: this host)")
    add("--instances-per-host", type=int, help="processes on each host; hosts are filled in order")
    add(
        "--start-command",
        default="ssh -o BatchMode=yes {host}",
        metavar="COMMAND",
        help="command that runs another command on a host; `{host}` stands for the host's name "
        "(default: %(default)s)",
    )
    add("--only-output-from-instance", type=int, metavar="INDEX", help="show only this process")
    add(
        "--executable-cache-path",
        metavar="FOLDER",
        help="folder for compiled models: one process compiles a model, and the others load it",
    )
    add(
        "--numa-aware",
        choices=("yes", "no"),
        default="no",
        help="bind each process to the cores of one NUMA node (default: %(default)s)",
    )
    add(
        "--mpi-local-args",
        help="arguments of mpirun, of which only `-x NAME[=VALUE]` is supported: it sets an "
        "environment variable",
    )
    add("--print-topology", choices=("yes", "no"), default="no", help="no effect")
    add("-v", "--verbose", action="count", default=0, help="log the command of each process")
    for option in _WITHOUT_EFFECT:
        add(option, nargs="?", const="yes", help="no effect")
    add("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
