"""Kernels for AVX-512 have others beside them, which run where PyTorch takes narrower vectors.

Most laptops have no AVX-512; `ATEN_CPU_CAPABILITY` has PyTorch, and the engine with it, do without.
"""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from poptorch_emu import _C

HERE = Path(__file__).parent
# Tests of operations with kernels for several vector widths: attention, poolings, products, LSTMs.
NAMES = (
    "test_attention_by_heads.py",
    "test_pooled_convolution.py",
    "test_image_max_pool.py",
    "test_product.py",
    "test_panel_product.py",
    "test_packed_product.py",
    "test_rnn.py",
)

# Tests to skip: operations without vector kernels of our own, and kernels of oneDNN.
OTHERS = "rnn_layer or on_ipu or onednn"

with_avx512 = pytest.mark.skipif(_C.vector_width() < 512, reason="there are none that are wider")

# Program that trains an LSTM of 19 rows, whose kernels also use vectors.
TRAINS_AN_LSTM = """
import hashlib, torch
from test_rnn import by_layers
def numbers(*sizes):
    count = torch.Size(sizes).numel()
    return ((torch.arange(count) * 7919 % 1009).float() / 1009 - 0.5).reshape(sizes)
network = torch.nn.LSTM(40, 96, bidirectional=True)
for parameter in network.parameters():
    parameter.data = numbers(*parameter.shape)
x = numbers(21, 19, 40).requires_grad_()
results = by_layers("lstm", network, x, [numbers(2, 19, 96), numbers(2, 19, 96)], by_rows=True)
seeds = [numbers(*result.shape) for result in results]
gradients = torch.autograd.grad(results, [x, *network.parameters()], seeds)
values = b"".join(tensor.detach().numpy().tobytes() for tensor in (*results, *gradients))
print(hashlib.sha256(values).hexdigest())
"""


def run(code: str, capability: str, *words: str) -> str:
    """Returns the output of a program for which PyTorch uses such vectors."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_engine_takes_no_wider_vectors_than_pytorch() -> None:
    widest = {"AVX512": 512, "AVX2": 256}
    assert _C.vector_width() <= widest.get(torch.backends.cpu.get_cpu_capability(), 0)


@with_avx512
def test_engine_when_pytorch_takes_no_vectors_then_takes_none() -> None:
    assert run("from poptorch_emu import _C; print(_C.vector_width())", "default") == "0\n"


@pytest.mark.slow
@with_avx512
def test_operations_when_pytorch_takes_narrower_vectors_then_pass_their_tests() -> None:
    """An LSTM, without random numbers, also has the same bits with both widths."""
    code = TRAINS_AN_LSTM + "import pytest, sys; from poptorch_emu import _C; "
    code += "assert _C.vector_width() == 256; sys.exit(pytest.main(sys.argv[1:]))"
    printed = run(code, "avx2", "-q", "-p", "no:cacheprovider", "-k", f"not ({OTHERS})", *NAMES)
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(TRAINS_AN_LSTM, {})
    assert printed.splitlines()[0] == here.getvalue().strip()
