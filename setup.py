"""Builds the C++ engine `poptorch_emu._C` from csrc/; everything else is in pyproject.toml."""

import os
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cpp"))

WARNINGS = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
IS_DEBUG = os.environ.get("DEBUG") == "1"
OPTIMISATION = ["-O0", "-g", "-D_GLIBCXX_ASSERTIONS"] if IS_DEBUG else ["-O2"]

# "address,undefined" or "thread"; `make sanitize` builds and runs both. Whether an object has the
# class it claims (vptr) can't be asked of PyTorch's, whose type information is hidden.
SANITIZE = os.environ.get("SANITIZE")
if SANITIZE:
    SANITIZER = [f"-fsanitize={SANITIZE}", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
    OPTIMISATION = ["-O1", "-g1", "-fno-omit-frame-pointer"]
else:
    SANITIZER = []

setup(
    ext_modules=[
        CppExtension(
            "poptorch_emu._C",
            SOURCES,
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args=[
                "-std=c++20",
                "-fvisibility=hidden",
                *WARNINGS,
                *OPTIMISATION,
                *SANITIZER,
            ],
            extra_link_args=SANITIZER,
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
