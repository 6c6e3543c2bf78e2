"""Starts processes, forwards their output, and ends all of them when one fails."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from poptorch_emu.distributed.failed_process import Failure, find, record
from poptorch_emu.distributed.instances import Instance
from poptorch_emu.distributed.launch_environment import SECRET
from poptorch_emu.distributed.launch_store import make_store
from poptorch_emu.distributed.message_store import MessageStore
from poptorch_emu.distributed.rendezvous import ADDRESS, AGENT_STORE, PORT
from poptorch_emu.errors import make_error

# Time for processes to report that a peer has failed, and then to terminate.
_GRACE_SECONDS, _TERMINATION_SECONDS = 5.0, 3.0
_PERIOD_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1  # Linux: sets the signal that a process gets when its parent dies.
# A shell that runs its standard input, because other users can see the arguments of a command.
_SHELL = (
    "sh",
    "-c",
    'eval "$(cat)"; echo "poprun: --start-command passes on no standard input" >&2; exit 125',
)
_NODES = Path("/sys/devices/system/node")  # Linux: the machine's NUMA nodes.


class Launcher:
    """All instances of one program."""

    def __init__(
        self,
        command: Sequence[str],
        instances: Sequence[Instance],
        *,
        environment: Mapping[str, str],
        start_command: Sequence[str],
        only_output_from: int | None = None,
        is_numa_aware: bool = False,
        is_verbose: bool = False,
    ) -> None:
        """Stores the arguments and makes the store. `run` starts the processes.

        Args:
            command: program and its arguments.
            instances: processes that run it.
            environment: further environment variables of all processes.
            start_command: command that starts another command on the host `{host}`.
            only_output_from: number of the instance whose output is shown; `None` shows all.
            is_numa_aware: whether each process is bound to the cores of one NUMA node.
            is_verbose: whether to print the commands.

        Raises:
            Error: a host is unknown, or no interface leads to the other hosts.
        """
        self._command = list(command)
        self._instances = instances
        self._start_command = list(start_command)
        self._shown = only_output_from
        self._is_numa_aware = is_numa_aware
        self._is_verbose = is_verbose
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._check_hosts()
        others = [i.host.rpartition("@")[2] for i in self._instances if not i.is_here]
        self._tcp_store, address = make_store(others)
        # Messages that are not signed with this secret are ignored.
        secret = secrets.token_hex(32)
        self._store = MessageStore(self._tcp_store, secret)
        self._environment = {
            **environment,
            ADDRESS: address,
            PORT: str(self._tcp_store.port),
            SECRET: secret,
            AGENT_STORE: str(True),
        }

    def run(self) -> int:
        """Runs all processes to their end; returns 0, or the status of the first failure."""
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            for instance in self._instances:
                self._start(instance)
            failed = self._wait()
            if failed is not None:
                self._wait_for_others()
        except KeyboardInterrupt:
            failed = None
            self._end_all()
            return 128 + signal.SIGINT
        finally:
            self._end_all()
            for reader in self._readers:
                reader.join(timeout=1.0)
            signal.signal(signal.SIGTERM, before)
        return 0 if failed is None else self._report(failed)

    def _start(self, instance: Instance) -> None:
        variables = {**self._environment, **instance.variables}
        command, environment, script = self._command, {**os.environ, **variables}, b""
        if not instance.is_here:
            command, environment = self._shell(instance), dict(os.environ)
            script = shell_script(self._command, variables)
        if self._is_verbose:
            text = shlex.join([*command, *([] if instance.is_here else self._command)])
            self._show(f"poprun: instance {instance.index} on {instance.host}: {text}\n")
        cores = numa_cores(instance.local_index) if self._is_numa_aware else None
        launcher = os.getpid()

        def prepare() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != launcher:  # The launcher died meanwhile.
                os._exit(1)
            if cores:
                os.sched_setaffinity(0, cores)

        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE if script else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except OSError as error:
            raise make_error(f"'{command[0]}' cannot be started: {error}.") from None
        self._processes.append(process)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), process.stdin:  # The process may have ended.
                process.stdin.write(script)
        reader = threading.Thread(target=self._pass_on, args=(instance, process), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _shell(self, instance: Instance) -> list[str]:
        """Returns the command that starts a shell on another host, which runs its input."""
        start = [word.replace("{host}", instance.host) for word in self._start_command]
        # The shell at the other end of ssh splits the command again.
        return [*start, shlex.join(_SHELL)] if _is_ssh(start) else [*start, *_SHELL]

    def _pass_on(self, instance: Instance, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if self._shown in (None, instance.index):
                self._show(f"[{instance.index}] {line.decode(errors='replace')}")

    def _show(self, text: str) -> None:
        with self._lock:
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
            sys.stdout.flush()

    def _wait(self) -> int | None:
        """Waits for the processes; returns the first failing one, `None` if all succeeded.

        The other processes are told of a failure.
        """
        while True:
            statuses = [process.poll() for process in self._processes]
            bad = [index for index, status in enumerate(statuses) if status]
            if bad:
                for index in bad:
                    self._tell(index)
                return bad[0]
            if all(status == 0 for status in statuses):
                return None
            time.sleep(_PERIOD_SECONDS)

    def _tell(self, index: int) -> None:
        status = self._processes[index].returncode
        line = (
            f"it was ended by {signal.Signals(-status).name}"
            if status < 0
            else f"it ended with status {status}"
        )
        with contextlib.suppress(RuntimeError, ValueError):
            record(self._store, Failure(index, self._host(index), line))

    def _host(self, index: int) -> str:
        host = self._instances[index].host
        return socket.gethostname() if self._instances[index].is_here else host

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline and any(p.poll() is None for p in self._processes):
            time.sleep(_PERIOD_SECONDS)

    def _end_all(self) -> None:
        """Ends the processes that still run, and all processes that they have started."""
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            running = [p for p in self._processes if p.poll() is None]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal_number)
                    os.killpg(process.pid, signal.SIGCONT)
            deadline = time.monotonic() + _TERMINATION_SECONDS
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(0.0, deadline - time.monotonic()))
        for process in self._processes:  # Children that outlived it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _report(self, failed: int) -> int:
        """Prints which process failed first, and returns the launcher's exit status."""
        failure = None
        with contextlib.suppress(RuntimeError, ValueError):  # The store may be gone.
            failure = find(self._store)
        if failure is not None and 0 <= failure.process < len(self._processes):
            cause, text = failure.process, str(failure)
        else:
            cause, text = failed, f"Process {failed} failed."
        print(f"poprun: {text}", file=sys.stderr, flush=True)
        status = self._processes[cause].returncode or self._processes[failed].returncode
        return 128 - status if status < 0 else int(status)

    def _check_hosts(self) -> None:
        if not _is_ssh(self._start_command):
            return
        for host in {i.host for i in self._instances if not i.is_here}:
            try:
                socket.getaddrinfo(host.rpartition("@")[2], 22)
            except (OSError, UnicodeError) as error:
                raise make_error(
                    f"The host '{host}' (--host) is not known here: {error}."
                ) from None


def shell_script(command: Sequence[str], variables: Mapping[str, str]) -> bytes:
    """Returns the script that runs the program in the same folder on another host.

    Args:
        command: program and its arguments.
        variables: environment variables of the program.
    """
    kept = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    settings = {**kept, **variables}.items()
    lines = [
        f"cd {shlex.quote(os.getcwd())} || exit 125",
        *(f"export {name}={shlex.quote(value)}" for name, value in settings),
        f"exec {shlex.join(command)} </dev/null",
    ]
    return os.fsencode("\n".join(lines))


def _is_ssh(start_command: Sequence[str]) -> bool:
    return bool(start_command) and os.path.basename(start_command[0]) == "ssh"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def numa_cores(local_index: int) -> set[int]:
    """Returns the cores of the NUMA node for the instance `local_index`, in turn.

    Empty if the machine has no information about its nodes.
    """
    allowed = os.sched_getaffinity(0)
    nodes = []
    for path in sorted(_NODES.glob("node[0-9]*/cpulist")):
        cores: set[int] = set()
        for span in filter(None, path.read_text().strip().split(",")):
            first, _, last = span.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
        if cores & allowed:
            nodes.append(cores & allowed)
    return nodes[local_index % len(nodes)] if nodes else set()
