"""Compares kernels for matrix products with PyTorch's own product on one core.

`poptorch_emu/engine/product_kernels.py` is based on these figures. Kernels take turns, and the best
CPU time of many turns counts. A kernel that does not support a product is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import result_files
import torch
import torch.nn.functional as F

from poptorch_emu.engine import onednn
from poptorch_emu.engine.product_kernels import Kernel, this_processor

_ours = torch.ops.poptorch_emu

SIZES = (
    *((8, 64, 64), (32, 128, 128), (64, 256, 256), (256, 128, 128), (256, 256, 256)),
    *((256, 512, 512), (256, 512, 2048), (256, 2048, 512), (1024, 256, 1024)),
)
Made = tuple[str, str, Callable[[], object]]  # kernel, packing, and timed function


def layers(rows: int, inputs: int, outputs: int) -> Iterator[Made]:
    """Yields implementations of a linear layer, PyTorch's first."""
    x, bias = torch.randn(rows, inputs), torch.randn(outputs)
    weight = torch.randn(outputs, inputs)
    yield "library", "none", lambda: F.linear(x, weight, bias)
    for kernel in (Kernel.LIBRARY, Kernel.SMALL, Kernel.PANELS):
        if this_processor().runs(kernel, is_packed=True):
            packed = _ours.pack_weight(weight, kernel.number, rows)
            args = x, packed, bias, outputs, kernel.number
            yield kernel.name.lower(), "once", lambda args=args: _ours.packed_linear(*args)
    if this_processor().runs(Kernel.ONEDNN, is_packed=True):
        packed = onednn.PACK_LINEAR(weight, rows)
        yield "onednn", "none", lambda: onednn.LINEAR(x, weight, bias, "none", [], "")
        yield "onednn", "once", lambda: onednn.LINEAR(x, packed, bias, "none", [], "")


def products(left: torch.Tensor, right: torch.Tensor) -> Iterator[Made]:
    """Yields implementations of a product, PyTorch's first."""
    yield "library", "none", lambda: left @ right
    for kernel in (Kernel.SMALL, Kernel.PANELS):
        is_whole = kernel is Kernel.PANELS or right.shape[1] % 16 == 0
        if this_processor().runs(kernel, is_packed=False) and is_whole:
            args = left, right, kernel.number
            yield kernel.name.lower(), "none", lambda args=args: _ours.product(*args)
    if this_processor().runs(Kernel.ONEDNN, is_packed=False):
        weight = right.t()
        yield "onednn", "none", lambda: onednn.LINEAR(left, weight, None, "none", [], "")


ROLES = {
    "layer": layers,
    "gradient of inputs": lambda m, k, n: products(torch.randn(m, k), torch.randn(k, n)),
    "gradient of weights": lambda m, k, n: products(torch.randn(k, m).t(), torch.randn(k, n)),
}


def best_seconds(runs: list[Callable[[], object]], seconds: float) -> list[float]:
    """Returns the shortest CPU time of each function; they take turns for `seconds`."""
    best = [float("inf")] * len(runs)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for index, run in enumerate(runs):
            start = time.thread_time()
            run()
            best[index] = min(best[index], time.thread_time() - start)
    return best


def measure(role: str, sizes: tuple[int, int, int], seconds: float) -> list[dict[str, object]]:
    """Prints each kernel's speed relative to PyTorch's product, and returns rows of results."""
    made = list(ROLES[role](*sizes))
    library, *others = best_seconds([run for _, _, run in made], seconds)
    rows, inputs, outputs = sizes
    results: list[dict[str, object]] = []
    for (kernel, packing, _), taken in zip(made[1:], others, strict=True):
        ratio = library / taken
        print(f"| {role} | {kernel} | {packing} | {rows} x {inputs} x {outputs} | {ratio:.2f} |")
        named = {"role": role, "kernel": kernel, "packing": packing, "against": "library"}
        sized = {"rows": rows, "inputs": inputs, "outputs": outputs}
        results.append({**named, **sized, "ratio": ratio, "note": "one core"})
    return results


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=list(ROLES))
    parser.add_argument("--sizes", nargs="+", help="rows x inputs x outputs, as 256x512x512")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds for each role and size")
    parser.add_argument("--csv", type=Path, help="append the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [tuple(map(int, text.split("x"))) for text in args.sizes or ()] or SIZES
    print("| role | kernel | packing | rows x inputs x outputs | speed over PyTorch's |")
    print("|---|---|---|---|---:|")
    for role in args.roles:
        for each in sizes:
            rows = measure(role, each, args.seconds)
            if args.csv:
                result_files.append(args.csv, rows)


if __name__ == "__main__":
    main()
