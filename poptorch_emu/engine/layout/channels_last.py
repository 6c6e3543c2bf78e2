"""Stores the engine's images in the channels-last layout where this is faster.

On the CPU, convolutions are faster in this layout, and poolings three to eight times as fast.
Elementwise operations keep the layout of their inputs. The graph decides, not the stage: each
operation converts its inputs to one layout, so that the bits do not depend on the origin of an
image. The engine has kernels of its own for batch norms in training (PyTorch's are less exact in
this layout), for max poolings (PyTorch's are slower), and for some gradients of convolutions,
because oneDNN's write outside of their memory (`csrc/ops/image_convolution.cpp`). A weight is
converted once in each window (`preparation`), and its gradient when the update reads it. Only the
engine's code changes, because the tiles of an IPU have layouts of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

import torch
from torch import fx

from poptorch_emu.engine import onednn
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.ir.graph import Graph, SinkKind
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.segments.segment import Instruction, Register, Segment
from poptorch_emu.segments.segmented_graph import SegmentedGraph, read_at_end
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

# Convolutions, each with the name of its weight argument.
_CONVOLUTIONS = {
    aten.convolution.default: "weight",
    aten.convolution_backward.default: "weight",
    onednn.CONVOLUTION: "W",
}
_POOLINGS = {
    aten.max_pool2d_with_indices.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.avg_pool2d.default,
    aten.avg_pool2d_backward.default,
}
# Other operators that compute in the layout of their images.
_FOLLOWERS = {
    *_POOLINGS,
    aten.native_batch_norm.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest2d_backward.default,
    aten.cat.default,
    aten._to_copy.default,
}
# Our replacement for each batch norm in training, with the name of the argument for training.
_BATCH_NORMS = {
    aten._native_batch_norm_legit_functional.default: (
        torch.ops.poptorch_emu.image_batch_norm.default,
        "training",
    ),
    aten.native_batch_norm_backward.default: (
        torch.ops.poptorch_emu.image_batch_norm_backward.default,
        "train",
    ),
}
_OUR_CONVOLUTION = torch.ops.poptorch_emu.image_convolution_backward.default
_MAX_POOL = aten.max_pool2d_with_indices.default
_OUR_MAX_POOL = torch.ops.poptorch_emu.image_max_pool.default
_OUR_MAX_POOL_WITH_INDICES = torch.ops.poptorch_emu.image_max_pool_with_indices.default
_UNUSED = -1  # register of a result that is not computed
_TO_CHANNELS_LAST = torch.ops.poptorch_emu.channels_last.default
_TO_CONTIGUOUS = aten.contiguous.default
_NUM_DIMS = 4


def use_channels_last(graph: Graph, cut: SegmentedGraph) -> SegmentedGraph:
    """Returns the segments, cut from `graph`, with their images in channels-last layout."""
    images = images_of(graph)
    if not images:
        return cut
    segments = {port: _changed(segment, images) for port, segment in cut.segments.items()}
    for sink, port, result in cut.results:
        for node in read_at_end(sink, result):
            if node in images and sink.kind is not SinkKind.GRADIENT:
                segments[port] = _with_contiguous_result(segments[port], node)
    return replace(cut, segments=segments)


def images_of(graph: Graph) -> set[fx.Node]:
    """Returns the operations that compute channels last, with the results in this layout."""
    found: set[fx.Node] = set()
    for node in graph.fx.nodes:
        if node.op == "call_function" and _is_image(node, found):
            found.add(node)
    return found if _pays(found) else set()


def _pays(images: Set[fx.Node]) -> bool:
    """Returns whether at least as many operations get faster as images must be converted."""
    operations = {node for node in images if isinstance(node.target, OpOverload)}
    faster = [
        node for node in operations if node.target in _CONVOLUTIONS or node.target in _POOLINGS
    ]
    entering = {
        each
        for node in operations
        for each in node.all_input_nodes
        if each not in images and _has_four_dims(each) and each is not _weight_of(node)
    }
    leaving = {node for node in images if _has_four_dims(node) and set(node.users) - images}
    return len(faster) >= max(len(entering) + len(leaving), 1)


def _weight_of(node: fx.Node) -> fx.Node | None:
    name = _CONVOLUTIONS.get(node.target)
    weight = None if name is None else getattr(arguments_of(node), name)
    assert weight is None or isinstance(weight, fx.Node)
    return weight


def _has_four_dims(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dim() == _NUM_DIMS


def _is_image(node: fx.Node, found: Set[fx.Node]) -> bool:
    value = node.meta["val"]
    if node.target in _CONVOLUTIONS:
        return _has_four_dims(node.all_input_nodes[0])
    if not isinstance(node.target, OpOverload):  # A selected result.
        return node.args[0] in found and _has_four_dims(node)
    if found.isdisjoint(node.all_input_nodes):
        return False
    if node.target is aten.native_batch_norm.default and arguments_of(node).training:
        return False
    if node.target in _BATCH_NORMS:
        return _is_single_batch_norm(node)
    if node.target in _FOLLOWERS:
        return "memory_format" not in node.kwargs
    return _is_elementwise(node) and any(
        each.meta["val"].shape == value.shape for each in node.all_input_nodes if each in found
    )


def _is_single_batch_norm(node: fx.Node) -> bool:
    """Returns whether `node` is a float32 batch norm in training, or its gradient."""
    _, is_training = _BATCH_NORMS[node.target]  # type: ignore[index]
    single = all(each.meta["val"].dtype == torch.float32 for each in node.all_input_nodes)
    return bool(getattr(arguments_of(node), is_training)) and single


def _is_elementwise(node: fx.Node) -> bool:
    is_pointwise = traits_of(node.target).is_pointwise
    return is_pointwise and "memory_format" not in node.kwargs and _has_four_dims(node)


def _changed(code: Segment, images: Set[fx.Node]) -> Segment:
    """Returns the code of a segment that computes `images` channels last."""
    shapes = {
        register: node.meta["val"].shape
        for node, register in code.registers.items()
        if isinstance(node.meta.get("val"), torch.Tensor) and node.target != onednn.PACK_CONVOLUTION
    }
    held = {register for node, register in code.registers.items() if node in images}
    converter = _Converter(code)
    for instruction in code.instructions:
        if instruction.node in images:
            wanted = _images_read(instruction, shapes)
            converter.add(_by_our_kernel(instruction), wanted, _TO_CHANNELS_LAST)
        else:
            converter.add(instruction, held.intersection(instruction.reads), _TO_CONTIGUOUS)
    return converter.finished(code.kept_registers())


def _by_our_kernel(instruction: Instruction) -> Instruction:
    """Returns the instruction with a kernel of ours, or unchanged if we have none."""
    if instruction.target in _BATCH_NORMS:
        return replace(instruction, target=_BATCH_NORMS[instruction.target][0])
    if instruction.target is aten.convolution_backward.default:
        return _safe(instruction)
    if instruction.target is not _MAX_POOL:
        return instruction
    if instruction.node.meta["val"][0].dtype != torch.float32:
        return instruction
    maxima, indices = instruction.outputs
    if indices == _UNUSED:
        return replace(instruction, target=_OUR_MAX_POOL, outputs=[maxima])
    return replace(instruction, target=_OUR_MAX_POOL_WITH_INDICES)


def _safe(instruction: Instruction) -> Instruction:
    """Returns a convolution's gradients by our operator where oneDNN's may write out of bounds."""
    weight = _weight_of(instruction.node)
    assert weight is not None
    is_of_pixels = weight.meta["val"].shape[2:].numel() == 1
    skips = max(arguments_of(instruction).stride) > 1
    return replace(instruction, target=_OUR_CONVOLUTION) if is_of_pixels and skips else instruction


def _images_read(instruction: Instruction, shapes: dict[int, torch.Size]) -> Iterator[int]:
    """Yields the registers that an operation must read channels last."""
    shape = None
    if traits_of(instruction.target).is_pointwise:
        shape = instruction.node.meta["val"].shape
    for register in instruction.reads:
        found = shapes.get(register, ())
        if len(found) == _NUM_DIMS and shape in (None, found):
            yield register


def _with_contiguous_result(code: Segment, node: fx.Node) -> Segment:
    """Returns the code with a contiguous copy of the value `node` that leaves the segment."""
    register = code.registers[node]
    kept = code.kept_registers()
    converter = _Converter(code)
    maker = None
    for instruction in code.instructions:
        converter.instructions.append(instruction)
        if register in instruction.outputs:
            maker = instruction
    if maker is None:  # A link delivers the value as it is.
        return code
    result = converter.converted(register, _TO_CONTIGUOUS, maker)
    changed = converter.finished(kept - {register} | {result})
    changed.registers[node] = result
    return changed


class _Converter:
    """Copies the code of a segment and inserts conversions before the operations that need them."""

    def __init__(self, code: Segment) -> None:
        self.instructions: list[Instruction] = []
        self._code = replace(code, registers=dict(code.registers), loads=dict(code.loads))
        self._known: dict[tuple[int, OpOverload], int] = {}

    def add(
        self,
        instruction: Instruction,
        registers: Iterator[int] | Set[int],
        to: OpOverload,
    ) -> None:
        """Adds an operation that reads converted copies of `registers`."""
        new = {register: self.converted(register, to, instruction) for register in registers}
        self.instructions.append(instruction.reading(new))

    def converted(self, register: int, to: OpOverload, like: Instruction) -> int:
        """Returns the register of the converted value; `like` is the instruction that reads it."""
        if (register, to) not in self._known:
            self._known[register, to] = result = self._code.new_register()
            self.instructions.append(
                replace(
                    like,
                    target=to,
                    args=(Register(register),),
                    kwargs={},
                    outputs=[result],
                    bodies=[],
                )
            )
        return self._known[register, to]

    def finished(self, kept: set[int]) -> Segment:
        """Returns the code; `kept` holds the registers that are read after the last instruction."""
        return self._code.rewritten(self.instructions, kept)
