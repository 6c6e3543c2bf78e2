"""Annotations, observed through a trace that they call."""

import copy
import inspect
import pickle

import pytest
import torch

from poptorch_emu.errors import Error
from poptorch_emu.ir.record import BlockPlace
from poptorch_emu.ops import block_annotations as blocks
from poptorch_emu.trace.places.blocks import current_block, tracing

pytestmark = pytest.mark.feature("Block, BeginBlock, BlockFunction, removeBlocks", fidelity="exact")


class Trace:
    """Replaces a trace: records each block that begins, and places all on stage 0."""

    def __init__(self):
        self.begun = []

    def __call__(self, block_id, ipu_id):
        self.begun.append((block_id, ipu_id))
        return BlockPlace(block_id, 0, 0, 0)


@pytest.fixture
def trace():
    resolver = Trace()
    with tracing(resolver):
        yield resolver


def test_block_in_a_trace_then_begins_and_ends(trace):
    with blocks.Block("encoder", ipu_id=1) as entered:
        assert current_block().block_id == "encoder"
    assert entered is None
    assert trace.begun == [("encoder", 1)]
    with pytest.raises(Error, match="No active Block"):
        current_block()


def test_block_when_reentered_then_begins_again(trace):
    block = blocks.Block("a")
    for _ in range(2):
        with block:
            pass
    assert trace.begun == [("a", None)] * 2


def test_block_start_then_lasts_until_the_next(trace):
    blocks.Block.start("a")
    blocks.Block.start("b", ipu_id=2)
    assert trace.begun == [("a", None), ("b", 2)]
    assert current_block().block_id == "b"


@pytest.mark.parametrize("empty", [None, ""], ids=["None", "blank"])
def test_block_without_id_then_counts_from_zero_until_reset(trace, empty):
    for _ in range(2):
        with blocks.Block(empty):
            pass
    blocks.Block.useAutoId()
    blocks.Block.start(empty)
    assert [block_id for block_id, _ in trace.begun] == ["0", "1", "0"]


def test_begin_block_on_a_module_then_same_module_begins_a_block_per_call(trace):
    layer = torch.nn.Linear(2, 2)
    assert blocks.BeginBlock(layer, "first", ipu_id=3) is layer
    layer(torch.ones(2))
    layer(torch.ones(2))
    assert trace.begun == [("first", 3)] * 2
    assert current_block().block_id == "first"


def test_begin_block_with_automatic_id_then_keeps_its_first(trace):
    layer = blocks.BeginBlock(torch.nn.ReLU())
    blocks.Block.start()
    layer(torch.ones(1))
    layer(torch.ones(1))
    assert [block_id for block_id, _ in trace.begun] == ["0", "1", "1"]


def test_begin_block_on_a_function_then_wraps_it(trace):
    add = blocks.BeginBlock(lambda x, y: x + y, user_id="add")
    assert isinstance(add, blocks.LegacyBeginBlockFn)
    assert add(1, y=2) == 3
    assert trace.begun == [("add", None)]


@pytest.mark.parametrize("wrong", [3, "layer", None])
def test_begin_block_when_not_callable_then_refuses(wrong):
    with pytest.raises(
        Error, match=r"module is not an instance of torch\.nn\.Module or function\."
    ):
        blocks.BeginBlock(wrong)


def test_begin_block_twice_then_refuses_until_removed():
    layer = blocks.BeginBlock(torch.nn.ReLU(), "a")
    with pytest.raises(Error, match=r"module has already been assigned to a block\.") as caught:
        blocks.BeginBlock(layer, "b")
    assert "BeginBlock(user_id=a, ipu_id=None)" in str(caught.value)
    blocks.removeBlocks(layer)
    blocks.BeginBlock(layer, "b")


def test_remove_blocks_then_strips_all_below_and_nothing_else(trace):
    calls = []
    inner = torch.nn.ReLU()
    inner.register_forward_pre_hook(lambda *_: calls.append("kept"))
    model = torch.nn.Sequential(blocks.BeginBlock(torch.nn.Sequential(inner), "outer"))
    blocks.BeginBlock(inner, "inner")
    blocks.removeBlocks(model)
    model(torch.ones(1))
    assert trace.begun == []
    assert calls == ["kept"]


def test_remove_blocks_when_not_a_module_then_asserts():
    with pytest.raises(AssertionError, match=r"expects a torch\.nn\.Module, not 5"):
        blocks.removeBlocks(5)


def test_block_function_then_each_call_is_a_block(trace):
    @blocks.BlockFunction("norm", ipu_id=1)
    def normalise(x, eps=1e-5):
        assert current_block().block_id == "norm"
        return x + eps

    assert normalise(1, eps=2) == 3
    assert trace.begun == [("norm", 1)]
    assert list(inspect.signature(normalise).parameters) == ["x", "eps"]


def test_annotations_outside_a_trace_then_change_nothing():
    layer = torch.nn.Linear(2, 2)
    x = torch.ones(1, 2)
    plain = layer(x)
    annotated = blocks.BeginBlock(layer)
    with blocks.Block("a"):
        blocks.Block.useAutoId()
        blocks.Block.start()
        result = blocks.BlockFunction()(annotated)(x)
    torch.testing.assert_close(result, plain, rtol=0, atol=0)
    assert "user_id=None" in repr(next(iter(layer._forward_pre_hooks.values())))


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "pickle"],
)
def test_copies_of_an_annotated_module_then_begin_the_block(trace, duplicate):
    duplicate(blocks.BeginBlock(torch.nn.ReLU(), "a", ipu_id=1))(torch.ones(1))
    duplicate(blocks.BeginBlock(torch.relu, "b"))(torch.ones(1))
    assert trace.begun == [("a", 1), ("b", None)]
