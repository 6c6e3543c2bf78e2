"""The names that programs of TensorFlow import, in programs of their own run by the runner."""

from __future__ import annotations

import importlib
import subprocess

import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from support import tensorflow_programs as programs  # noqa: E402
from support.forked_programs import PYTORCH, run_forked  # noqa: E402

from poptorch_emu import Error  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: names", fidelity="exact")

SESSIONS = "tensorflow.python.client.session"

# Imports in the forms of public programs, and checks of their meaning.
IMPORTS = """
from tensorflow.python import ipu
import tensorflow as tf
import keras
from tensorflow.python.ipu import config, ipu_infeed_queue, ipu_outfeed_queue, ipu_strategy, loops
from tensorflow.python.ipu.config import IPUConfig
from tensorflow.python.ipu.ipu_strategy import IPUStrategy, IPUStrategyV1
from tensorflow.python.ipu.ipu_outfeed_queue import IPUOutfeedQueue, IPUOutfeedMode
from tensorflow.python.ipu.ops import pipelining_ops
from tensorflow.python.ipu.ops.pipelining_ops import PipelineSchedule
from tensorflow.keras import ipu as of_keras
from tensorflow.python.ipu.gradient_accumulation import GradientAccumulationReductionMethod
import tensorflow.python.ipu.loops as other_loops
from ipu_tensorflow_addons.keras.layers import Embedding, LSTM
from ipu_tensorflow_addons.keras import optimizers as added
from tensorflow.python.ipu.distributed.popdist_strategy import PopDistStrategy
from tensorflow.python.ipu.horovod.popdist_strategy import PopDistStrategy as OfHorovod
from tensorflow.python.ipu.optimizers import CrossReplicaOptimizer
from keras.ipu.optimizers import GradientAccumulationOptimizer
from tensorflow.keras.ipu.layers import Embedding as OfKeras
import popdist.tensorflow
from tensorflow.python.keras.datasets import mnist
import tensorflow.python.keras.datasets.cifar10 as cifar10
from poptorch_emu.keras import ipu as ours

assert OfKeras is Embedding is keras.ipu.layers.Embedding
assert OfHorovod is PopDistStrategy is ipu.distributed.popdist_strategy.PopDistStrategy
assert GradientAccumulationOptimizer is tf.keras.ipu.optimizers.GradientAccumulationOptimizer
assert added.LAMBIpuOptimizer and CrossReplicaOptimizer is ipu.optimizers.CrossReplicaOptimizer
assert mnist is keras.datasets.mnist and cifar10 is keras.datasets.cifar10
ipu.horovod.init()
assert (ipu.horovod.rank(), ipu.horovod.size()) == (0, 1)
assert ipu.custom_ops is ipu.ops.custom_ops
assert ipu is ours
assert tf.keras.losses.mean_squared_error is keras.losses.mean_squared_error
assert tf.losses.kl_divergence and tf.keras.metrics.mean_absolute_error
assert tf.keras.optimizers.experimental.Adam is keras.optimizers.Adam
assert ipu.pipelining_ops is pipelining_ops is ipu.ops.pipelining_ops
assert tf.keras.ipu is keras.ipu is of_keras is ours.keras
assert other_loops is loops is ipu.loops
assert IPUStrategyV1 is IPUStrategy is ipu.ipu_strategy.IPUStrategy
assert keras.ipu.PipelineStage is tf.keras.ipu.PipelineStage
assert keras.backend.backend() == "torch"
assert tf.keras.Model is keras.Model is ipu.keras.Model
assert ipu.keras.Sequential is keras.Sequential is tf.keras.ipu.Sequential
assert keras.ipu.ModelLayerPipelineStageAssignment
assert keras.ipu.FunctionalNestedModelPipelineStageAssignment
assert issubclass(
    tf.keras.ipu.SequentialNestedModelPipelineStageAssignment,
    ipu.keras.SequentialLayerPipelineStageAssignment,
)
"""


def run(code: str, *, runner: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KERAS_BACKEND", raising=False)
        if runner:
            return run_forked(["-m", "poptorch_emu", "-c", code], environment)
        return run_forked(["-c", code], environment, loaded=PYTORCH)


def check(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Prints the default number of threads of TensorFlow, and the number that the program then sets.
THREADS = """
import os
import tensorflow as tf
get = tf.config.threading.get_intra_op_parallelism_threads
print(get(), max(1, os.cpu_count() - 2))
tf.config.threading.set_intra_op_parallelism_threads(3)
print(get())
"""
REFUSED_USES = {
    "scopes.ipu_scope('/device:IPU:0').__enter__()": "Use IPUStrategy.run or fit",
    "serving.export_keras(1)": "trainingModel",
    "ops.custom_ops.precompiled_user_op([])": "poptorch.custom_op",
}
REFUSED = f"""
import tensorflow.python.ipu.ops.summary_ops
from tensorflow.python.ipu import ipu_compiler, ops, scopes, serving
for use in {list(REFUSED_USES)}:
    try:
        eval(use)
    except Exception as error:
        print(str(error).splitlines()[0])
print("nothing was said so far", file=sys.stderr, flush=True)
ipu_compiler.compile(print, [])
"""
PROGRAM = f"import sys\n{THREADS}{IMPORTS}print('names are there')\n{REFUSED}"


@pytest.fixture(scope="module")
def by_the_runner() -> subprocess.CompletedProcess[str]:
    """Runs one program for all tests, because TensorFlow takes seconds to import."""
    return run(PROGRAM)


def test_names_when_run_by_the_runner_then_are_the_front_ends_and_nothing_else_is_said(
    by_the_runner,
) -> None:
    assert "names are there" in by_the_runner.stdout, by_the_runner.stderr
    assert by_the_runner.stderr.startswith("nothing was said so far\n")


def test_threads_of_tensorflow_then_leave_the_engine_its_cores(by_the_runner) -> None:
    found, wanted = by_the_runner.stdout.splitlines()[0].split()
    assert found == wanted


def test_threads_when_the_program_sets_them_then_are_the_programs(by_the_runner) -> None:
    assert by_the_runner.stdout.splitlines()[1] == "3"


def test_modules_when_refused_then_importing_is_fine_and_use_says_the_way_out(
    by_the_runner,
) -> None:
    assert by_the_runner.returncode == 1
    told = by_the_runner.stdout.splitlines()[3:]
    assert len(told) == len(REFUSED_USES), by_the_runner.stderr
    for line, way_out in zip(told, REFUSED_USES.values(), strict=True):
        assert way_out in line
    errors = by_the_runner.stderr
    assert "Use IPUStrategy.run or fit" in errors
    assert f'"<string>", line {len(PROGRAM.splitlines())}' in errors, errors


def test_names_when_installed_after_tensorflow_then_are_there_too() -> None:
    late = (
        "import tensorflow as tf, keras\n"
        "import poptorch_emu\n"
        "poptorch_emu.emulator.install()\n" + IMPORTS
    )
    check(run(late, runner=False, KERAS_BACKEND="torch"))


def test_names_when_keras_runs_on_another_backend_then_the_way_out_is_said() -> None:
    code = "import tensorflow as tf\nfrom tensorflow.python import ipu"
    done = run(code, KERAS_BACKEND="tensorflow")
    assert done.returncode == 1
    assert "KERAS_BACKEND=torch before the first import of keras" in done.stderr


@pytest.mark.parametrize("name", ["tensorflow", "keras"])
def test_extra_when_it_is_not_installed_then_is_missed_by_who_imports_it_alone(name: str) -> None:
    code = (
        "import poptorch, sys\n"
        "print(sorted({'tensorflow', 'keras'} & set(sys.modules)))\n"
        f"sys.modules[{name!r}] = None\n"
        f"import {name}"
    )
    done = run(code)
    assert done.stdout.strip() == "[]", "Who does not use them does not load them."
    assert done.returncode == 1
    assert f"What to change: {'TensorFlow' if name == 'tensorflow' else 'Keras'} is" in done.stderr
    assert f"pip install 'poptorch_emu[{name}]'" in done.stderr


@pytest.mark.parametrize("use", ["Session()", "InteractiveSession()", "disable_v2_behavior()"])
@pytest.mark.parametrize("is_imported", [False, True], ids=["named", "imported"])
def test_program_of_tensorflow_1_then_the_way_out_is_said(is_imported: bool, use: str) -> None:
    """The imported module may differ from the attribute of TensorFlow."""
    programs.strategy()
    old = importlib.import_module("tensorflow.compat.v1") if is_imported else tf.compat.v1
    with pytest.raises(Error, match="is of TensorFlow 1.*IPUStrategy.run or fit"):
        eval(f"old.{use}")
    assert tf.executing_eagerly()
    assert issubclass(old.Session, importlib.import_module(SESSIONS).Session)
