"""Someone on the network without the secret of a launch can change nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support import store_attack
from support.forked_programs import FORKED_RUNNER as PYTHON
from support.forked_programs import run_forked
from support.processes import finish, start

pytestmark = pytest.mark.feature("poprun", fidelity="exact")

SCRIPT = store_attack.__file__
FAILURE = json.dumps({"process": 0, "host": "here", "line": "it is over"})
# Values by their keys; `tests/unit/distributed/test_messages.py` has more.
ATTACKS = {
    "no JSON": {"failure": "\x1b[2Jno JSON"},
    "wrong signature": {"failure": f"{'0' * 64} {FAILURE}", "ended/1": f"{'0' * 64} 7"},
    "replay": {"failure": "=host/0", "ended/0": "=host/0", "seen/1": "=host/1"},
}


def poprun(*arguments: str, **more: str):
    return run_forked(["-m", "poptorch_emu.poprun", "--num-instances", "2", *arguments], more)


@pytest.mark.parametrize("forgeries", ATTACKS.values(), ids=ATTACKS)
def test_messages_when_forged_then_the_job_goes_on(forgeries) -> None:
    done = poprun(*PYTHON, SCRIPT, json.dumps(forgeries))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sorted(line for line in lines if "DONE" in line) == ["[0] DONE", "[1] DONE"]
    warnings = [line for line in lines if "from outside of this launch is ignored" in line]
    assert len(warnings) == 2 and all("'failure'" in line for line in warnings)
    assert all(line.isprintable() for line in lines)
    assert "Traceback" not in done.stdout + done.stderr


def test_messages_when_forged_then_the_true_failure_is_reported() -> None:
    fault = "\x1b[31mthe disk is full\x07"
    done = poprun(*PYTHON, SCRIPT, json.dumps({"failure": FAILURE}), fault)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("poprun: Process ")]
    assert re.search(r"Process 1 on .* failed: RuntimeError: \\x1b\[31mthe disk is full", told[0])
    assert told[0].isprintable()


SENDS_CODE = """
import os, pickle, sys, popdist, torch, horovod.torch as hvd
popdist.init()
index = popdist.getInstanceIndex()

class Code:
    def __reduce__(self):
        return os.mkdir, (sys.argv[1],)

print("ROWS", hvd.allgather(torch.arange(index + 1) > 0).tolist())
if index == 1:
    torch.save = lambda _, file: file.write(pickle.dumps(Code()))
hvd.allgather(torch.ones(1))
"""


def test_gathered_tensors_when_one_is_code_then_it_is_not_run(tmp_path: Path) -> None:
    done = poprun(*PYTHON, "-c", SENDS_CODE, str(tmp_path / "made"))
    assert done.stdout.count("ROWS [False, False, True]") == 2
    assert done.returncode == 1 and "UnpicklingError" in done.stdout + done.stderr
    assert not (tmp_path / "made").exists()


LISTENERS = """
import os, popdist
popdist.init()
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/self/net/{name}").read().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        address, _, port = local.partition(":")
        if state == "0A":  # Listens.
            print("LISTENS", int(port, 16) == int(os.environ["MASTER_PORT"]), address)
popdist.synchronize()
"""


def test_store_of_poprun_on_one_host_then_listens_on_the_loopback_interface() -> None:
    done = poprun(*PYTHON, "-c", LISTENERS, POPTORCH_EMU_LAUNCHER_ADDR="0.0.0.0")
    assert done.returncode == 0, done.stdout + done.stderr
    addresses = set(re.findall(r"LISTENS True (\w+)", done.stdout))
    assert addresses == {"0100007F"}


def test_store_of_process_0_on_one_host_then_listens_on_the_loopback_interface() -> None:
    code = "import poptorch_emu.emulator as emulator; emulator.install()\n" + LISTENERS
    ended = finish(start(code, [], 2, 1))
    for each in ended:
        assert each.status == 0, each.text
        assert set(re.findall(r"LISTENS True (\w+)", each.text)) == {"0100007F"}


# Looks for the secret in the command lines of all processes.
LOOKS_FOR_SECRET = """
import os, pathlib
secret = os.environ["POPTORCH_EMU_SECRET"].encode()
assert len(secret) >= 32
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        assert secret not in path.read_bytes()
    except OSError:
        pass
print("SECRET", secret.decode(), repr(os.environ["TOLD"]), os.getcwd())
"""
ELSEWHERE = ("--host", "localhost,elsewhere", "--start-command", "env")


def test_secret_then_each_launch_has_another_and_no_command_line_has_it(tmp_path: Path) -> None:
    odd = "a'b\"c $(exit 3)\n\\d"
    found = set()
    for _ in range(2):
        done = run_forked(
            ["-m", "poptorch_emu.poprun", "-v", "--num-instances", "2", *ELSEWHERE,
             "--mpi-local-args", "-x TOLD", *PYTHON, "-c", LOOKS_FOR_SECRET],
            {"POPTORCH_EMU_LAUNCHER_ADDR": "127.0.0.1", "TOLD": odd},
            tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        told = re.findall(r"\[(\d)\] SECRET (\w+) (.*) (\S+)", done.stdout)
        assert {(index, text, folder) for index, _, text, folder in told} == {
            ("0", repr(odd), str(tmp_path)),
            ("1", repr(odd), str(tmp_path)),
        }
        (secret,) = {secret for _, secret, _, _ in told}
        found.add(secret)
        assert secret not in "".join(re.findall("poprun: instance .*", done.stdout))
    assert len(found) == 2


def test_poprun_when_the_start_command_passes_nothing_on_then_says_so() -> None:
    # Everything behind `$0` is run without standard input.
    start_command = "sh -c 'exec \"$@\" </dev/null' sh"
    done = poprun(
        "--host", "localhost,elsewhere", "--start-command", start_command,
        *PYTHON, "-c", "import time; time.sleep(1)",
        POPTORCH_EMU_LAUNCHER_ADDR="127.0.0.1",
    )  # fmt: skip
    assert done.returncode == 125
    assert "[1] poprun: --start-command passes on no standard input" in done.stdout


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"POPTORCH_EMU_LAUNCHER_ADDR": "no.such.host.invalid"}, "POPTORCH_EMU_LAUNCHER_ADDR"),
        ({"POPTORCH_EMU_LAUNCHER_ADDR": "x" * 300}, "POPTORCH_EMU_LAUNCHER_ADDR"),
        ({"POPTORCH_EMU_LAUNCHER_ADDR": "0.0.0.0"}, "POPTORCH_EMU_LAUNCHER_ADDR"),
        ({"GLOO_SOCKET_IFNAME": "none0"}, "GLOO_SOCKET_IFNAME is 'none0'.* It has .*lo"),
    ],
)
def test_poprun_when_it_cannot_tell_where_to_listen_then_names_the_variable(variables, text):
    done = poprun(*ELSEWHERE, *PYTHON, "-c", "pass", **variables)
    assert done.returncode == 2
    assert re.search(f"^poprun: .*{text}", done.stderr, re.MULTILINE), done.stderr
    assert "Traceback" not in done.stderr


def test_poprun_when_a_variable_has_no_name_then_says_so() -> None:
    done = poprun("--mpi-local-args", "-x 'a;b=c'", *PYTHON, "-c", "pass")
    assert done.returncode == 2 and "'a;b' is not a valid name" in done.stderr
    assert "POPTORCH_EMU_SECRET" not in os.environ
