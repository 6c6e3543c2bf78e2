"""Errors for uses that no static graph allows, with line, rule and remedy (semantics 12, 15)."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.forked_programs import run_forked
from torch import nn

import poptorch_emu as poptorch


class Calls(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor):
        return self.function(*tensors)


def run(function, *tensors: torch.Tensor):
    options = poptorch.Options().showCompilationProgressBar(False)
    model = function if isinstance(function, nn.Module) else Calls(function)
    return poptorch.inferenceModel(model, options)(*tensors)


x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
ITEM = ("aten::item is only supported in eager mode", "torch.where")
SHAPE = ("shape depends on data", "torch.where")
REFUSED = {
    "item": (lambda t: t.sum().item(), *ITEM),
    "int": (lambda t: t[: int(t.sum())], *ITEM),
    "if": (lambda t: t if t.sum() > 0 else -t, *ITEM),
    "tolist": (lambda t: t.tolist(), *ITEM),
    "assertion": (lambda t: bool((t > 0).all()), *ITEM),
    "numpy": (lambda t: t.numpy(), *ITEM),
    "array": (lambda t: t + np.ones(2), *ITEM),
    "tensor of values": (lambda t: torch.tensor([1.0, t.sum()]), *ITEM),
    "tensor on the IPU": (lambda t: torch.tensor([t.sum()], device=t.device), *ITEM),
    "data": (lambda t: setattr(t, "data", t * 2), "cannot be captured", "tensor.data.copy_(value)"),
    "nested": (lambda t: torch.nested.nested_tensor([t[0], t[1, :1]]), "Type inference", "dense"),
    "copy": (lambda t: copy.copy(t) * 2, "by no operation of this model", "clone()"),
    "array of values": (lambda t: np.asarray(t), *ITEM),
    "format": (lambda t: f"{t.sum():.2f}", *ITEM),
    "packed": (
        lambda t: nn.utils.rnn.pack_padded_sequence(t[None], [1]),
        "Packed sequences are not",
        "mask",
    ),
    "equal": (lambda t: torch.equal(t, t + 1), *ITEM),
    "nonzero": (lambda t: t.nonzero(), *SHAPE),
    "mask": (lambda t: t[t > 0], *SHAPE),
    "unique": (lambda t: t.unique(), *SHAPE),
    "repeat": (lambda t: t.repeat_interleave(t[0].long(), dim=0), *SHAPE),
    "tensor_split": (lambda t: t.tensor_split(t[0].long()), "shape depends on data", "numbers"),
    "bincount": (lambda t: t[0].long().bincount(), "Bincount `minlength` must be", "Pass"),
    "one_hot": (
        lambda t: F.one_hot(t[0].long()),
        "OneHot num classes must be specified and must be constant.",
        "Pass num_classes",
    ),
    "bits": (
        lambda t: (t > 0) & t,
        "Bitwise-and operator supports only bool and integer types",
        "torch.logical_and",
    ),
    "bits in place": (
        lambda t: t.clone().bitwise_xor_(1),
        "Bitwise-xor operator supports only bool and integer types",
        "torch.logical_xor",
    ),
    "no bits": (
        lambda t: torch.bitwise_not(t.half()),
        "Bitwise-not operator supports only bool and integer types",
        "torch.logical_not",
    ),
    "sparse": (lambda t: t.to_sparse(), "Type inference failed", "dense"),
    "quantized": (
        lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
        "Unsupported scalar type `QInt8'",
        "Please cast to `Char'",
    ),
    "roll": (lambda t: t.roll((1, 2)), "The 'shifts' argument of the roll op", "scalar"),
    "roll of dims": (
        lambda t: torch.roll(t, (1, 2), (0,)),
        "The 'shifts' and 'dims' arguments of the roll op",
        "same size",
    ),
    "change of what overlaps": (
        lambda t: t.clone().view(-1).unfold(0, 3, 1).add_(1),
        "shares memory with other tensors",
        "clone()",
    ),
}


@pytest.mark.feature("Errors while tracing", fidelity="exact")
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_construct_names_line_rule_and_way_out(name):
    function, rule, way_out = REFUSED[name]
    with pytest.raises(poptorch.Error) as raised:
        run(function, x)
    text = str(raised.value)
    assert rule in text
    assert way_out in text
    assert f"{__file__}:{function.__code__.co_firstlineno}" in text


def test_a_tensor_prints_as_unavailable_while_tracing(capsys):
    run(lambda t: (print(t), t + 1)[1], x)
    assert "tensor(<unavailable>, device='ipu:0'" in capsys.readouterr().out


def test_a_lazy_module_that_is_not_initialised_is_refused_by_both_wrappers():
    model = nn.LazyLinear(3)
    with pytest.raises(poptorch.Error, match="weight is not initialised yet.*on the CPU"):
        run(model, x)
    with pytest.raises(poptorch.Error, match="weight is not initialised yet.*on the CPU"):
        poptorch.trainingModel(model)
    model(x)
    torch.testing.assert_close(run(model, x), model(x).detach())


def test_a_value_made_of_constants_is_known_while_tracing():
    def function(t):
        width = torch.arange(3, device=t.device)[2].item()
        return t * width, t[:, : int(torch.ones((), device=t.device))]

    scaled, cut = run(function, x)
    torch.testing.assert_close(scaled, x * 2)
    torch.testing.assert_close(cut, x[:, :1])


def test_a_tensor_is_made_of_a_tensor_or_of_known_ones():
    def function(t):
        two = torch.tensor([torch.tensor(1.5), 2])
        return torch.tensor(t, dtype=torch.int32), t * two

    copied, scaled = run(function, x)
    torch.testing.assert_close(copied, x.int())
    torch.testing.assert_close(scaled, x * torch.tensor([1.5, 2]))


COMPILED = """
import torch
import poptorch_emu as poptorch
layer, x = torch.nn.Linear(2, 3), torch.randn(4, 2)
model = torch.nn.Sequential(torch.compile(layer))
options = poptorch.Options().showCompilationProgressBar(False)
torch.testing.assert_close(poptorch.inferenceModel(model, options)(x), layer(x).detach())
"""


def test_what_torch_compile_wraps_is_traced():
    # This runs in another process, because importing Dynamo changes settings of PyTorch for good.
    done = run_forked(["-c", COMPILED])
    assert done.returncode == 0, done.stderr


def test_an_autocast_around_the_call_does_not_reach_the_device():
    layer = nn.Linear(2, 3)

    def function(t):
        return F.linear(t, layer.weight.to(t.device)) @ (torch.ones(3, 3) @ torch.ones(3, 1))

    expected = function(x).detach()
    with torch.autocast("cpu"):
        result = run(function, x)
    torch.testing.assert_close(result, expected)


def test_an_error_of_pytorch_is_raised_and_not_logged(caplog):
    with caplog.at_level("ERROR"), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run(lambda t: t @ t[:1], x)
    assert not [line for line in caplog.messages if "run meta" in line]


def test_a_sparse_gradient_is_refused():
    class Model(nn.Embedding):
        def forward(self, index):
            return poptorch.identity_loss(super().forward(index).sum(), "none")

    model = Model(4, 2, sparse=True)
    training = poptorch.trainingModel(
        model, poptorch.Options().showCompilationProgressBar(False), torch.optim.SGD([model.weight])
    )
    with pytest.raises(poptorch.Error, match="gradient at .* is sparse.*sparse=False"):
        training(torch.tensor([1, 2]))


def test_a_tensor_made_of_tensors_is_a_copy_or_made_of_known_values():
    def function(t):
        return torch.tensor([torch.tensor(2), 3]) * t, torch.tensor(t).mul_(2), t

    with pytest.warns(UserWarning, match="To copy construct from a tensor"):
        expected = function(x)
    torch.testing.assert_close(run(function, x), expected)


def test_a_forward_that_calls_a_wrapped_model_is_refused_with_line_and_way_out():
    inner = poptorch.inferenceModel(nn.Linear(2, 2))

    def function(t):
        return inner(t)

    with pytest.raises(poptorch.Error, match="its forward calls a wrapped model at") as raised:
        run(function, x)
    assert f"{__file__}:{function.__code__.co_firstlineno + 1}" in str(raised.value)


def test_models_that_two_threads_compile_at_once_wait_for_each_other():
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda scale: run(lambda t: t * scale, x), range(8)))
    for scale, result in enumerate(results):
        torch.testing.assert_close(result, x * scale)


def test_a_constant_that_was_changed_in_place_is_not_known():
    def function(t):
        count = torch.zeros((), device=t.device)
        count += t.sum()
        return t * count.item()

    with pytest.raises(poptorch.Error, match="only supported in eager mode"):
        run(function, x)


def test_a_tensor_made_on_the_cpu_is_real_and_captured_at_its_first_use():
    def function(t):
        table = torch.full((2,), 5.0, device="cpu")
        first = t + table.to(t.device)
        table += 1
        return first, t + table.to(t.device)

    first, second = run(function, x)
    torch.testing.assert_close(first, x + 5)
    torch.testing.assert_close(second, x + 6)


@pytest.mark.parametrize(
    "function",
    [
        lambda t: t[[1, 0]],
        lambda t: t[:, torch.tensor([1], device="cpu")],
        lambda t: t.index_put((torch.tensor([0, 0], device="cpu"),), t, accumulate=True),
        lambda t: t[::2, [0, 0, 1]],
    ],
    ids=["list", "tensor", "accumulate", "step and list"],
)
def test_indices_may_come_from_the_cpu(function):
    torch.testing.assert_close(run(function, x), function(x))


STATIC = {
    "gaussian": lambda t: F.gaussian_nll_loss(t, t + 1, (t * 0.2).square(), full=True),
    "narrow": lambda t: torch.narrow(t, 1, (t[0, 0] > 0).long(), 1),
    "bincount": lambda t: t.abs().long().view(-1).bincount(minlength=6),
    "weighted": lambda t: t.abs().long().view(-1).bincount(t.view(-1), minlength=6),
    "ctc": lambda t: F.ctc_loss(
        torch.log_softmax(t[:, None].expand(2, 2, 2), -1), torch.ones(2, 1).long(), [2, 2], [1, 1]
    ),
    "polygamma": lambda t: t.clone().abs_().polygamma_(2),
    "householder": lambda t: torch.geqrf(t)[1],
    "spectrum of planes": lambda t: torch.fft.ifft2(t).abs(),
    "spectrum": lambda t: torch.fft.rfft(t).abs(),
}


@pytest.mark.parametrize("name", STATIC)
def test_a_function_that_looks_at_values_has_a_static_form(name):
    expected = STATIC[name](x)
    torch.testing.assert_close(run(STATIC[name], x), expected.to(run(STATIC[name], x).dtype))


def test_a_causal_mask_made_in_forward_does_not_have_to_be_known():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    batch, mask = torch.randn(2, 3, 4), nn.Transformer.generate_square_subsequent_mask(3)
    torch.testing.assert_close(run(encoder, batch, mask), encoder(batch, mask).detach())


def test_each_compilation_is_counted_with_the_shapes_that_caused_it(caplog):
    options = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.inferenceModel(Calls(torch.neg), options)
    with caplog.at_level("INFO", logger="poptorch::python"):
        model(x)
        model(x)
        model.destroy()
        model(x[:1])
    lines = [text for text in caplog.messages if text.startswith("Compilation")]
    assert len(lines) == 2
    assert lines[0].startswith("Compilation 1 of Calls") and "[2, 2]" in lines[0]
    assert lines[1].startswith("Compilation 2 of Calls") and "torch.float32[1, 2]" in lines[1]
