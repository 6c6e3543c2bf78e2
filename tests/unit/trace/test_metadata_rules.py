"""Compares the C++ rules for the metadata of results with PyTorch's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.forked_programs import PYTORCH, run_forked
from support.metadata_checks import check, check_refused, on_meta

from poptorch_emu import _C
from poptorch_emu.trace.fakes import metadata_rules

aten = torch.ops.aten


def names() -> list[tuple[str, str]]:
    """Returns name and overload of each rule."""
    for name in _C.metadata_rule_names():
        _C.define_metadata_rules(name.removeprefix("aten::"))
    prefix = "poptorch_emu_metadata::"
    found = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)]
    parts = [name.removeprefix(prefix).partition(".") for name in sorted(found)]
    return [(name, overload or "default") for name, _, overload in parts]


def test_rules_are_of_operations_of_pytorch_with_the_same_arguments() -> None:
    assert len(names()) > 300
    for name, overload in names():
        theirs = getattr(getattr(aten, name), overload)._schema
        ours = getattr(getattr(torch.ops.poptorch_emu_metadata, name), overload)._schema
        assert str(ours).replace("poptorch_emu_metadata::", "aten::") == str(theirs)


IMAGES = torch.rand(2, 6, 9, 8)
KERNELS = torch.rand(4, 3, 3, 2)
ROWS = torch.rand(5, 7)
HEADS = torch.rand(2, 5, 3, 4).transpose(1, 2)
LABELS = torch.randint(6, (2, 9, 8))
CHANNELS = torch.rand(6)

CASES = {
    "relu": (aten.relu.default, ROWS),
    "relu of integers": (aten.relu.default, LABELS),
    "hardtanh": (aten.hardtanh.default, ROWS.t(), -1, 1),
    "hardswish": (aten.hardswish.default, ROWS.t()),
    "integers and a number": (aten.add.Tensor, LABELS, 0.5),
    "a number minus": (aten.rsub.Scalar, LABELS, 2),
    "divided integers": (aten.div.Tensor, LABELS, 2),
    "in place with a number": (aten.mul_.Tensor, ROWS.clone(), 2),
    "divided in place": (aten.div_.Tensor, ROWS.clone(), 2),
    "power of a number": (aten.pow.Scalar, 0.5, LABELS),
    "where": (aten.where.self, ROWS.t() > 0, ROWS.t(), torch.zeros(())),
    "masked": (aten.masked_fill.Scalar, ROWS, ROWS[0] > 0, 1),
    "masked with a tensor": (aten.masked_fill.Tensor, ROWS, ROWS > 0, torch.zeros(())),
    "full of truths": (aten.full.default, [2, 3], True),
    "full of integers": (aten.full.default, [2, 3], 1),
    "a scalar": (aten.scalar_tensor.default, 1),
    "zeros": (aten.zeros.default, [2, 0]),
    "absolute": (aten.abs.default, ROWS.t()),
    "not": (aten.logical_not.default, LABELS.permute(2, 0, 1)),
    "numbers": (aten.arange.default, 7),
    "numbers from": (aten.arange.start, -2, 7),
    "numbers by steps": (aten.arange.start_step, 7, -2, -4),
    "like transposed": (aten.zeros_like.default, ROWS.t()),
    "like a part": (aten.empty_like.default, IMAGES[:, ::2].permute(3, 1, 0, 2)),
    "new": (aten.new_zeros.default, LABELS, [3]),
    "copy of transposed": (aten.clone.default, ROWS.t()),
    "copied into": (aten.copy_.default, ROWS.clone(), ROWS[0]),
    "sum of truths": (aten.sum.default, ROWS > 0),
    "sum": (aten.sum.default, ROWS),
    "mean": (aten.mean.default, ROWS.half()),
    "largest": (aten.max.default, LABELS),
    "stack": (aten.stack.default, [ROWS, ROWS], -1),
    "rows": (aten.index_select.default, IMAGES, -2, torch.tensor([0, 3, 3])),
    "embedding": (aten.embedding.default, ROWS, torch.tensor([[0, 1], [4, 2]])),
    "padding": (aten.constant_pad_nd.default, IMAGES, [1, 2, -1, 0], 0.5),
    "convolution": (
        *(aten.convolution.default, IMAGES, KERNELS, torch.rand(4)),
        *([2, 1], [1, 0], [1, 2], False, [0, 0], 2),
    ),
    "one stride for all": (
        *(aten.convolution.default, IMAGES, torch.rand(4, 6, 3, 3), None),
        *([2], [1], [1], False, [0], 1),
    ),
    "transposed convolution": (
        *(aten.convolution.default, IMAGES, torch.rand(6, 2, 3, 2), torch.rand(4)),
        *([2, 3], [1, 0], [1, 2], True, [1, 2], 2),
    ),
    "safe softmax": (aten._safe_softmax.default, IMAGES, -1),
    "dropout": (aten.native_dropout.default, IMAGES, 0.5, True),
    "dropout of transposed": (aten.native_dropout.default, ROWS.t(), 0.5, True),
    "prelu": (aten._prelu_kernel.default, IMAGES, CHANNELS.view(1, 6, 1, 1)),
    "group norm": (aten.native_group_norm.default, IMAGES, CHANNELS, None, 2, 6, 72, 3, 1e-5),
    "pooled to a size": (aten._adaptive_avg_pool2d.default, IMAGES, [3, 2]),
    "layer norm": (aten.native_layer_norm.default, ROWS, [7], ROWS[0], ROWS[1], 1e-5),
    "batch norm of training": (
        *(aten.native_batch_norm.default, IMAGES, CHANNELS, CHANNELS),
        *(CHANNELS.clone(), CHANNELS.clone(), True, 0.1, 1e-5),
    ),
    "functional batch norm": (
        *(aten._native_batch_norm_legit_functional.default, IMAGES, CHANNELS, CHANNELS),
        *(CHANNELS, CHANNELS, True, 0.1, 1e-5),
    ),
    "loss of images": (aten.nll_loss2d_forward.default, IMAGES, LABELS, None, 1, -100),
    "losses of images": (aten.nll_loss2d_forward.default, IMAGES, LABELS, None, 0, -100),
    "attention": (aten._scaled_dot_product_flash_attention_for_cpu.default, HEADS, HEADS, HEADS),
}
BACKWARD = {
    "convolution": (
        *(aten.convolution_backward.default, torch.rand(2, 4, 7, 7), IMAGES, KERNELS, [4]),
        *([1, 1], [0, 0], [1, 1], False, [0, 0], 2, [True, True, False]),
    ),
    "layer norm": (
        *(aten.native_layer_norm_backward.default, ROWS, ROWS, [7], ROWS[:, :1], ROWS[:, :1]),
        *(ROWS[0], ROWS[1], [True, False, True]),
    ),
    "batch norm": (
        *(aten.native_batch_norm_backward.default, IMAGES, IMAGES, CHANNELS, CHANNELS, CHANNELS),
        *(CHANNELS, CHANNELS, True, 1e-5, [True, True, True]),
    ),
    "transposed convolution": (
        *(aten.convolution_backward.default, torch.rand(2, 4, 18, 25), IMAGES),
        *(torch.rand(6, 2, 3, 2), [4], [2, 3], [1, 0], [1, 2], True, [1, 1], 2, [True] * 3),
    ),
    "group norm": (
        *(aten.native_group_norm_backward.default, IMAGES, IMAGES, torch.rand(2, 3)),
        *(torch.rand(2, 3), CHANNELS, 2, 6, 72, 3, [True, False, True]),
    ),
    "prelu": (*(aten._prelu_kernel_backward.default, IMAGES, IMAGES, CHANNELS.view(1, 6, 1, 1)),),
    "dropout": (aten.native_dropout_backward.default, IMAGES, IMAGES > 0.5, 2.0),
    "selected": (aten.select_backward.default, ROWS, [5, 2, 7], 1, 1),
    "slice": (aten.slice_backward.default, ROWS, [5, 9], 1, 1, 8, 1),
    "embedding": (aten.embedding_dense_backward.default, ROWS, torch.arange(5), 9, -1, False),
    "loss of images": (
        *(aten.nll_loss2d_backward.default, torch.ones(()), IMAGES, LABELS, None, 1, -100),
        torch.tensor(144.0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_metadata_when_a_rule_of_ours_says_it_then_is_pytorch_s(case: str) -> None:
    func, *args = CASES[case]
    check(func, *args)


@pytest.mark.parametrize("case", BACKWARD)
def test_metadata_of_a_gradient_when_a_rule_of_ours_says_it_then_is_pytorch_s(case: str) -> None:
    func, *args = BACKWARD[case]
    check(func, *args)


def test_metadata_of_gradients_of_attention_is_pytorch_s() -> None:
    output, sums = aten._scaled_dot_product_flash_attention_for_cpu.default(HEADS, HEADS, HEADS)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    check(backward, output, HEADS, HEADS, HEADS, output, sums, 0.0, False)


def test_copy_when_asked_for_a_format_then_has_it() -> None:
    check(aten.clone.default, ROWS.t(), memory_format=torch.contiguous_format)
    check(aten._to_copy.default, IMAGES, dtype=torch.half, memory_format=torch.channels_last)


@st.composite
def operands(draw: Any) -> list[torch.Tensor]:
    """Draws two tensors that broadcast, with any types and memory orders."""
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    tensors = []
    for _ in range(2):
        sizes = [draw(st.sampled_from([size, 1])) for size in shape]
        order = draw(st.permutations(range(len(sizes))))
        dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.int32, torch.bool]))
        dense = torch.ones([sizes[dim] for dim in order], dtype=dtype)
        places = sorted(range(len(order)), key=lambda dim, order=order: order[dim])
        tensors.append(dense.permute(places))
    return tensors


@given(operands())
def test_metadata_of_pairs_when_broadcast_then_is_pytorch_s(tensors: list[torch.Tensor]) -> None:
    x, y = tensors
    check(aten.add.Tensor, x, y)
    check(aten.div.Tensor, x, y)
    check(aten.le.Tensor, x, y)
    check(aten.where.self, x > 0, x, y)


@given(
    rows=st.integers(1, 3),
    size=st.integers(1, 9),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
)
def test_metadata_of_a_convolution_when_it_fits_then_is_pytorch_s(
    rows: int, size: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    x, weight = torch.rand(rows, 2, size), torch.rand(3, 2, kernel)
    args = (x, weight, None, [stride], [padding], [dilation], False, [0], 1)
    if dilation * (kernel - 1) < size + 2 * padding:
        check(aten.convolution.default, *args)
        return
    with pytest.raises(RuntimeError):
        aten.convolution.default(*args)
    with pytest.raises(metadata_rules.NOT_TAKEN):
        metadata_rules.find(aten.convolution.default, args)(*on_meta(args))  # type: ignore[misc]


WRONG = {
    "embedding of floats": (aten.embedding.default, ROWS, ROWS),
    "product of other sizes": (aten.mm.default, ROWS, ROWS),
    "layer norm of other sizes": (aten.native_layer_norm.default, ROWS, [6], None, None, 1e-5),
    "groups that do not divide": (
        *(aten.convolution.default, IMAGES, KERNELS, None),
        *([1, 1], [0, 0], [1, 1], False, [0, 0], 4),
    ),
    "numbers in the wrong direction": (aten.arange.start, 3, 1),
    "mean of integers": (aten.mean.default, LABELS),
    "copy of too much": (aten.copy_.default, ROWS[0].clone(), ROWS),
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_when_pytorch_refuses_them_then_no_rule_takes_them(case: str) -> None:
    func, *args = WRONG[case]
    check_refused(func, *args)


MODELS = """
import sys
import torch
from torch import nn
import poptorch_emu as poptorch

layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
images = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                       nn.Flatten(), nn.Linear(36, 5), nn.LogSoftmax(dim=1))
words = nn.Sequential(nn.Embedding(9, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 9))
image, sentence = torch.rand(2, 1, 8, 8), torch.zeros(2, 4, dtype=torch.int32)
"""

INFERENCE = """
for model, x in ((images, image), (words, sentence), (nn.LSTM(4, 8), torch.rand(3, 2, 4))):
    poptorch.inferenceModel(model.eval())(x)
"""

TRAINING = """
class Trained(nn.Module):
    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x, labels):
        return self.loss(self.model(x), labels)

def scores(values, labels):
    return nn.functional.cross_entropy(values.transpose(1, 2), labels)

adam_w, sgd = poptorch.optim.AdamW, poptorch.optim.SGD
for model, x, loss, labels, optimizer in (
    (images, image, nn.NLLLoss(), torch.zeros(2, dtype=torch.long), sgd),
    (words, sentence, scores, torch.zeros(2, 4, dtype=torch.long), adam_w),
):
    trained = Trained(model, loss)
    optimizer = optimizer(trained.parameters(), lr=0.1)
    poptorch.trainingModel(trained, optimizer=optimizer)(x, labels)
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
"""


OPERATIONS = """
class Operations(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("rows", torch.tensor([2, 0, 1, 3]))
        self.register_buffer("places", torch.arange(24).view(4, 6) % 4)

    def forward(self, x, target):
        y = nn.functional.logsigmoid(self.first(x))[self.rows].flip(1).roll(1, 0)
        y = nn.functional.normalize(y + torch.rand_like(y)).scatter_add(0, self.places, y)
        y[1] = y[0] * torch.linspace(0, 1, 6, device=y.device)
        y = torch.where(torch.logical_and(y > 0, y < 9), y, y % 3) - y.logsumexp(1, keepdim=True)
        y = self.second(y * y.std(1, keepdim=True)).masked_fill(y > 1, 0.5)
        losses = nn.functional.mse_loss, nn.functional.huber_loss, nn.functional.smooth_l1_loss
        binary = nn.functional.binary_cross_entropy(torch.sigmoid(y), target)
        return poptorch.identity_loss(sum([f(y, target) for f in losses]) + binary, "sum")

model = Operations()
training = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
training(torch.rand(4, 6), torch.rand(4, 6))
"""

HALF = """
layers = [nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()]
layers += [nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)]
model = nn.Sequential(*layers).half()
options = poptorch.Options()
options.Precision.enableStochasticRounding(True)
training = poptorch.trainingModel(
    Trained(model, nn.CrossEntropyLoss()), options, poptorch.optim.AdamW(model.parameters(), lr=0.1)
)
training(torch.rand(4, 6).half(), torch.zeros(4, dtype=torch.long))
"""


def test_common_layers_load_neither_sympy_nor_pytorch_s_compiler() -> None:
    programs = {"inference": INFERENCE, "training": TRAINING, "operations": OPERATIONS}
    programs["half"] = HALF
    code = ""
    for name, program in programs.items():
        loaded = "[name for name in ('sympy', 'torch._dynamo') if name in sys.modules]"
        code += f"{MODELS}{program}print('after', {name!r}, {loaded})\n"
    done = run_forked(["-c", code], loaded=PYTORCH)
    lines = [line for line in done.stdout.splitlines() if line.startswith("after")]
    assert lines == [f"after {name} []" for name in programs]
