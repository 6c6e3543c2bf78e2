"""Kernels for AVX-512 have plain ones beside them, which run where PyTorch takes narrower vectors.

Most laptops have no AVX-512; `ATEN_CPU_CAPABILITY` has PyTorch, and the engine with it, do without.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from poptorch_emu import _C

HERE = Path(__file__).parent
# Tests of operations that have such kernels: poolings, products, LSTMs.
NAMES = ("test_image_max_pool.py", "test_gradient_product.py", "test_rnn.py")


def test_engine_then_takes_no_wider_vectors_than_pytorch() -> None:
    assert not _C.uses_avx512() or torch.backends.cpu.get_cpu_capability() == "AVX512"


@pytest.mark.slow
@pytest.mark.skipif(not _C.uses_avx512(), reason="these tests run so in any case")
def test_operations_when_pytorch_takes_narrower_vectors_then_pass_their_tests() -> None:
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    code = "from poptorch_emu import _C; import pytest, sys; assert not _C.uses_avx512(); "
    code += "sys.exit(pytest.main(sys.argv[1:]))"
    words = ["-q", "-p", "no:cacheprovider", *(str(HERE / name) for name in NAMES)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
