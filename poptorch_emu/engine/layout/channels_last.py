"""Lets the engine's images lie with their channels next to each other, where that pays.

Convolutions and poolings are faster so on the CPU, poolings three to eight times, and what they
pass on to elementwise operations stays so. The graph decides, not the stage: each operation
converts what it reads to one layout, so that the bits do not depend on where an image comes from.
Batch norms in training have kernels of ours, since PyTorch's for this layout are less exact, and
maximum poolings, since PyTorch's is slower, and some convolutions, since oneDNN's gradients destroy
memory (`csrc/ops/image_convolution.cpp`). A weight is converted once a window (`preparation`), and
its gradient where the update reads it. Only the engine's code is changed: the tiles of an IPU have
layouts of their own.
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

# With the name of the weight among the arguments.
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
# These, too, compute in the layout of their images.
_FOLLOWERS = {
    *_POOLINGS,
    aten.native_batch_norm.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest2d_backward.default,
    aten.cat.default,
    aten._to_copy.default,
}
# In training, these stand for batch norms, with the argument that says so.
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
_UNUSED = -1  # in place of the register of a result
_TO_CHANNELS_LAST = torch.ops.poptorch_emu.channels_last.default
_TO_CONTIGUOUS = aten.contiguous.default
_NUM_DIMS = 4


def use_channels_last(graph: Graph, cut: SegmentedGraph) -> SegmentedGraph:
    """Returns the segments, which were cut from `graph`, with images channels last."""
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
    """Returns the operations that compute channels last, and their results that lie so."""
    found: set[fx.Node] = set()
    for node in graph.fx.nodes:
        if node.op == "call_function" and _is_image(node, found):
            found.add(node)
    return found if _pays(found) else set()


def _pays(images: Set[fx.Node]) -> bool:
    """Returns whether as many operations are faster as there are images to convert."""
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
    if not isinstance(node.target, OpOverload):  # One of several results.
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
    """Returns whether `node` is a batch norm in training, or its gradient, in float32."""
    _, is_training = _BATCH_NORMS[node.target]  # type: ignore[index]
    single = all(each.meta["val"].dtype == torch.float32 for each in node.all_input_nodes)
    return bool(getattr(arguments_of(node), is_training)) and single


def _is_elementwise(node: fx.Node) -> bool:
    is_pointwise = traits_of(node.target).is_pointwise
    return is_pointwise and "memory_format" not in node.kwargs and _has_four_dims(node)


def _changed(code: Segment, images: Set[fx.Node]) -> Segment:
    """Returns the code of a segment in which `images` are computed channels last."""
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
    """Returns the operation by a kernel of ours, itself where there is none."""
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
    """Returns the gradients of a convolution by our operator, where oneDNN's may write too far."""
    weight = _weight_of(instruction.node)
    assert weight is not None
    is_of_pixels = weight.meta["val"].shape[2:].numel() == 1
    skips = max(arguments_of(instruction).stride) > 1
    return replace(instruction, target=_OUR_CONVOLUTION) if is_of_pixels and skips else instruction


def _images_read(instruction: Instruction, shapes: dict[int, torch.Size]) -> Iterator[int]:
    """Yields what an operation reads that is to lie channels last."""
    shape = None
    if traits_of(instruction.target).is_pointwise:
        shape = instruction.node.meta["val"].shape
    for register in instruction.reads:
        found = shapes.get(register, ())
        if len(found) == _NUM_DIMS and shape in (None, found):
            yield register


def _with_contiguous_result(code: Segment, node: fx.Node) -> Segment:
    """Returns the code in which what leaves the segment as `node` is contiguous."""
    register = code.registers[node]
    kept = code.kept_registers()
    converter = _Converter(code)
    maker = None
    for instruction in code.instructions:
        converter.instructions.append(instruction)
        if register in instruction.outputs:
            maker = instruction
    if maker is None:  # It comes by a link, as it is.
        return code
    result = converter.converted(register, _TO_CONTIGUOUS, maker)
    changed = converter.finished(kept - {register} | {result})
    changed.registers[node] = result
    return changed


class _Converter:
    """Writes the code of a segment again, with operations that convert what others read."""

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
        """Adds an operation that reads some registers converted."""
        new = {register: self.converted(register, to, instruction) for register in registers}
        self.instructions.append(instruction.reading(new))

    def converted(self, register: int, to: OpOverload, like: Instruction) -> int:
        """Returns the register of the converted value; `like` says for whom it is made."""
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
        """Returns the code, of which `kept` is read at the end."""
        return self._code.rewritten(self.instructions, kept)
