"""The table from ATen's random operations to the counter-based ones."""

from types import SimpleNamespace

import pytest
import torch
from torch.func import functionalize
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import poptorch_emu._C  # noqa: F401
from poptorch_emu.errors import Error
from poptorch_emu.trace.pytorch.random_ops import RANDOM_REWRITES

ops = torch.ops.poptorch_emu

RNG = torch.tensor([7, 3, 1, 0])
OP_ID = 5
F32, F16, I32, I64 = torch.float32, torch.float16, torch.int32, torch.int64


class Rewriter(TorchDispatchMode):
    """Runs the counter-based operator instead of a random one, and collects the calls."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        self.seen.append(func)
        nodes = pytree.tree_map_only(
            torch.Tensor, lambda value: SimpleNamespace(meta={"val": value}), list(args)
        )
        target, args, kwargs = RANDOM_REWRITES[func](nodes, kwargs or {}, RNG, OP_ID)
        return target(*(getattr(arg, "meta", {}).get("val", arg) for arg in args), **kwargs)


def run_rewritten(function, *inputs):
    with Rewriter() as rewriter:
        return functionalize(function, remove="mutations")(*inputs), rewriter.seen


X = torch.rand(4, 6)
HALF = X.half()
STD = torch.rand(4, 6) + 0.5

# A function of PyTorch, its inputs, and the call of ours that draws its numbers.
CASES = {
    "rand": (lambda: torch.rand(4, 6), (), ("uniform", [4, 6], F32, 0.0, 1.0)),
    "rand float16": (lambda: torch.rand(4, 6, dtype=F16), (), ("uniform", [4, 6], F16, 0.0, 1.0)),
    "rand_like": (torch.rand_like, (HALF,), ("uniform", [4, 6], F16, 0.0, 1.0)),
    "rand_like float32": (
        lambda x: torch.rand_like(x, dtype=F32), (HALF,), ("uniform", [4, 6], F32, 0.0, 1.0)
    ),
    "uniform_": (
        lambda x: torch.empty_like(x).uniform_(-1, 2), (X,), ("uniform", [4, 6], F32, -1.0, 2.0)
    ),
    "randn": (lambda: torch.randn(4, 6), (), ("normal", [4, 6], F32, 0.0, 1.0)),
    "randn_like": (torch.randn_like, (X,), ("normal", [4, 6], F32, 0.0, 1.0)),
    "normal_": (
        lambda x: torch.empty_like(x).normal_(1, 3), (X,), ("normal", [4, 6], F32, 1.0, 3.0)
    ),
    "normal of numbers": (
        lambda: torch.normal(1.0, 3.0, (4, 6)), (), ("normal", [4, 6], F32, 1.0, 3.0)
    ),
    "normal of tensors": (torch.normal, (X, STD), ("normal.tensor", X, STD)),
    "normal of a mean": (lambda x: torch.normal(x, 2.0), (X,), ("normal.tensor_float", X, 2.0)),
    "normal of a deviation": (
        lambda x: torch.normal(1.0, x), (STD,), ("normal.float_tensor", 1.0, STD)
    ),
    "log_normal_": (
        lambda x: torch.empty_like(x).log_normal_(0.5, 0.25), (X,),
        ("log_normal", [4, 6], F32, 0.5, 0.25),
    ),
    "exponential_": (
        lambda x: torch.empty_like(x).exponential_(2), (X,), ("exponential", [4, 6], F32, 2.0)
    ),
    "cauchy_": (
        lambda x: torch.empty_like(x).cauchy_(1, 2), (X,), ("cauchy", [4, 6], F32, 1.0, 2.0)
    ),
    "geometric_": (
        lambda x: torch.empty_like(x).geometric_(0.3), (X,), ("geometric", [4, 6], F32, 0.3)
    ),
    "bernoulli": (torch.bernoulli, (X,), ("bernoulli.tensor", [4, 6], F32, X)),
    "bernoulli of a number": (
        lambda x: torch.bernoulli(x, 0.3), (X,), ("bernoulli", [4, 6], F32, 0.3)
    ),
    "bernoulli_": (
        lambda x: torch.empty_like(x).bernoulli_(0.3), (HALF,), ("bernoulli", [4, 6], F16, 0.3)
    ),
    "bernoulli_ of a tensor": (
        lambda x: torch.empty_like(x, dtype=I32).bernoulli_(x), (X,),
        ("bernoulli.tensor", [4, 6], I32, X),
    ),
    "native_dropout": (
        lambda x: torch.native_dropout(x, 0.3, True)[0], (X,), ("dropout", X, 0.3)
    ),
    "native_dropout in evaluation": (
        lambda x: torch.native_dropout(x, 0.3, False)[0], (X,), ("dropout", X, 0.0)
    ),
    "randint": (lambda: torch.randint(9, (4, 6)), (), ("randint", [4, 6], I64, 0, 9)),
    "randint from a bound": (
        lambda: torch.randint(-3, 9, (4, 6), dtype=I32), (), ("randint", [4, 6], I32, -3, 9)
    ),
    "rand without generator": (
        lambda: torch.rand(4, 6, generator=None), (), ("uniform", [4, 6], F32, 0.0, 1.0)
    ),
    "randn without generator": (
        lambda: torch.randn(4, 6, generator=None), (), ("normal", [4, 6], F32, 0.0, 1.0)
    ),
    "randint without generator": (
        lambda: torch.randint(9, (4, 6), generator=None), (), ("randint", [4, 6], I64, 0, 9)
    ),
    "randint from a bound without generator": (
        lambda: torch.randint(-3, 9, (4, 6), generator=None), (), ("randint", [4, 6], I64, -3, 9)
    ),
    "randperm without generator": (
        lambda: torch.randperm(9, generator=None), (), ("randperm", 9, I64)
    ),
    "randint_like": (
        lambda x: torch.randint_like(x, 9), (X,), ("randint", [4, 6], F32, 0, 9)
    ),
    "randint_like from a bound": (
        lambda x: torch.randint_like(x, -3, 9), (X,), ("randint", [4, 6], F32, -3, 9)
    ),
    "random_ to a bound": (
        lambda x: torch.empty_like(x).random_(9), (X,), ("randint", [4, 6], F32, 0, 9)
    ),
    "random_ between bounds": (
        lambda x: torch.empty_like(x).random_(-3, 9), (X,), ("randint", [4, 6], F32, -3, 9)
    ),
    "random_ of float32": (
        lambda x: torch.empty_like(x).random_(), (X,), ("randint", [4, 6], F32, 0, 2**24 + 1)
    ),
    "random_ of float16": (
        lambda x: torch.empty_like(x).random_(), (HALF,), ("randint", [4, 6], F16, 0, 2**11 + 1)
    ),
    "random_ of int32": (
        lambda: torch.empty(4, 6, dtype=I32).random_(), (), ("randint", [4, 6], I32, 0, 2**31)
    ),
    "random_ of int64": (
        lambda: torch.empty(4, 6, dtype=I64).random_(), (), ("randint", [4, 6], I64, 0, 2**63 - 1)
    ),
    "random_ of bool": (
        lambda: torch.empty(4, 6, dtype=torch.bool).random_(), (),
        ("randint", [4, 6], torch.bool, 0, 2),
    ),
    "randperm": (lambda: torch.randperm(9), (), ("randperm", 9, I64)),
    "randperm int32": (lambda: torch.randperm(9, dtype=I32), (), ("randperm", 9, I32)),
    "multinomial": (
        lambda x: torch.multinomial(x, 3), (X,), ("multinomial", X, 3, False)
    ),
    "multinomial with replacement": (
        lambda x: torch.multinomial(x, 9, replacement=True), (X,), ("multinomial", X, 9, True)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rewrite_draws_what_the_function_asks_for(name):
    function, inputs, (target, *arguments) = CASES[name]
    drawn, seen = run_rewritten(function, *inputs)
    assert len(seen) == 1
    eager = function(*inputs)
    assert drawn.shape == eager.shape and drawn.dtype is eager.dtype
    packet, _, overload = target.partition(".")
    expected = getattr(getattr(ops, packet), overload or "default")(RNG, OP_ID, *arguments)
    if isinstance(expected, tuple):
        expected = expected[0]
    assert torch.equal(drawn, expected)


def test_table_has_a_case_for_each_of_its_operations():
    covered = set()
    for function, inputs, _ in CASES.values():
        covered.update(run_rewritten(function, *inputs)[1])
    assert covered == set(RANDOM_REWRITES)


def test_rewrite_with_a_generator_says_how_to_seed():
    rewrite = RANDOM_REWRITES[torch.ops.aten.randperm.generator]
    with pytest.raises(Error, match=r"Options\.randomSeed"):
        rewrite((5,), {"generator": torch.Generator()}, None, 0)
