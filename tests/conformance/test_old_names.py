"""Programs of PopTorch 2: names that release 3 dropped work as they did, with one warning each."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.options import old_names

pytestmark = pytest.mark.feature("Names of older releases", fidelity="exact")

_HALF, _SINGLE = torch.float16, torch.float32


class Model(nn.Module):
    """Computes `function` of an input and weights, in a region of autocast."""

    def __init__(self, function, *weights, enabled=True) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(weights)
        self.enabled = enabled

    def forward(self, *inputs):
        with poptorch.autocast(enabled=self.enabled):
            return self.function(*inputs, *self.weights)


def result_of(function, *inputs, policy=None, weights=(), enabled=True):
    opts = options()
    if policy is not None:
        opts.Precision.autocastPolicy(policy)
    model = Model(function, *weights, enabled=enabled)
    return poptorch.inferenceModel(model, opts)(*inputs)


def same(actual, expected):
    assert actual.dtype is expected.dtype
    tolerance = 4e-3 if expected.dtype is _HALF else 1e-6
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if "[Deprecated] poptorch." in r.getMessage()]


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda: poptorch.AnchorMode, "AnchorMode"),
        (lambda: poptorch.autocast, "autocast"),
        (lambda: poptorch.autocasting, "autocasting"),
        (lambda: poptorch.Options().anchorMode, "Options.anchorMode"),
        (lambda: poptorch.Options().Popart, "Options.Popart"),
        (lambda: poptorch.Options().Precision.autocastEnabled, "Options.autocastEnabled"),
        (lambda: poptorch.Options().Precision.autocastPolicy, "Options.autocastPolicy"),
    ],
)
def test_old_name_then_warns_once_and_is_not_listed(caplog, use, name):
    old_names.note_old_name.cache_clear()
    use()
    use()
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"[Deprecated] poptorch.{name} is a name of PopTorch 2. Use ")
    bare = name.rpartition(".")[2]
    opts = poptorch.Options()
    assert all(bare not in dir(owner) for owner in (poptorch, opts, opts.Precision))
    assert bare not in poptorch.__all__


def test_anchor_mode_then_is_output_mode():
    assert poptorch.AnchorMode is poptorch.OutputMode
    opts = poptorch.Options()
    assert opts.anchorMode(poptorch.AnchorMode.EveryN, anchor_return_period=3) is opts
    assert opts.output_mode == poptorch.OutputMode.EveryN
    assert opts.output_return_period == 3
    opts.anchorMode(poptorch.AnchorMode.Final)
    model = poptorch.inferenceModel(nn.ReLU(), opts.deviceIterations(2))
    assert torch.equal(model(torch.tensor([[1.0], [2.0]])), torch.tensor([[2.0]]))


def test_old_options_from_text_then_work(tmp_path):
    config = tmp_path / "old.conf"
    config.write_text("anchorMode(poptorch.AnchorMode.Sum)\nPopart.set('enableStableNorm', True)\n")
    opts = poptorch.Options().loadFromFile(config)
    assert opts.output_mode == poptorch.OutputMode.Sum
    assert opts._Popart.options["enableStableNorm"] is True
    assert opts.Popart is opts._Popart


def test_old_setters_when_frozen_then_refuse():
    opts = poptorch.Options()
    poptorch.inferenceModel(nn.ReLU(), opts)
    for change in (
        lambda: opts.anchorMode(poptorch.AnchorMode.All),
        lambda: opts.Popart.set("a", 1),
        lambda: opts.Precision.autocastEnabled(False),
        lambda: opts.Precision.autocastPolicy(poptorch.autocasting.Policy()),
    ):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change()


def test_autocast_settings_when_read_then_are_what_was_set():
    precision, policy = poptorch.Options().Precision, poptorch.autocasting.Policy()
    assert precision.autocast_enabled is True
    assert precision.autocast_policy is None
    precision.autocastEnabled(False).autocastPolicy(policy)
    assert precision.autocast_enabled is False
    assert precision.autocast_policy is policy


def test_autocast_setters_when_of_the_wrong_type_then_refuse():
    precision = poptorch.Options().Precision
    with pytest.raises(AssertionError, match="autocast_enabled must be of type bool"):
        precision.autocastEnabled(1)
    with pytest.raises(AssertionError, match="autocast_policy must be of type Policy"):
        precision.autocastPolicy([torch.add])
    with pytest.raises(AssertionError, match="enabled must be a bool"):
        poptorch.autocast("on")


_OTHER_WAYS = {
    "linear": (F.linear, [(3, 4), (5, 4), (5,)], _HALF),
    "matmul": (torch.matmul, [(3, 4), (4, 5)], _HALF),
    "@": (lambda a, b: a @ b, [(3, 4), (4, 5)], _HALF),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)], _HALF),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(3, 4), (4, 5)], _HALF),
    "conv2d": (F.conv2d, [(2, 3, 6, 6), (4, 3, 3, 3), (4,)], _HALF),
    "conv_transpose1d": (F.conv_transpose1d, [(2, 3, 4), (3, 2, 3), (2,)], _HALF),
    "attention": (F.scaled_dot_product_attention, [(1, 2, 3, 4)] * 3, _HALF),
}


@pytest.mark.parametrize("name", _OTHER_WAYS)
@pytest.mark.parametrize("dtype", [_HALF, _SINGLE], ids=str)
def test_products_when_autocast_then_are_float16(name, dtype):
    function, shapes, expected = _OTHER_WAYS[name]
    inputs = [torch.randn(shape, dtype=dtype) for shape in shapes[:1]]
    weights = [torch.randn(shape) for shape in shapes[1:]]
    actual = result_of(function, *inputs, weights=weights)
    same(actual, function(*(t.to(expected) for t in [*inputs, *weights])))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.softmax(x, -1),
        lambda x: x.softmax(-1),
        lambda x: F.log_softmax(x, -1),
        lambda x: F.layer_norm(x, (4,)),
        lambda x: F.group_norm(x, 2),
        lambda x: F.normalize(x),
        lambda x: F.mse_loss(x, torch.zeros_like(x)),
        lambda x: torch.exp(x),
        lambda x: x**2,
    ],
)
def test_sensitive_operation_when_autocast_then_is_float32(function):
    x = torch.randn(3, 4, dtype=_HALF)
    same(result_of(function, x), function(x.float()))


@pytest.mark.parametrize(
    "function",
    [
        torch.add,
        lambda a, b: a + b,
        lambda a, b: a.sub(b),
        lambda a, b: a / b,
        torch.maximum,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a > 0, a, b),
    ],
)
def test_mixed_types_when_autocast_then_promote(function):
    a, b = torch.randn(3, 4, dtype=_HALF), torch.randn(3, 4)
    same(result_of(function, a, b), function(a.float(), b))
    same(result_of(function, a, b.half()), function(a, b.half()))


def test_policy_then_decides_for_each_of_its_lists():
    policy = poptorch.autocasting.Policy(
        fp16=[torch.add], fp32=["torch.matmul"], promote=[torch.mul], demote=[torch.Tensor.sub]
    )
    a, b = torch.randn(4, 4, dtype=_HALF), torch.randn(4, 4)
    h, s = a, b
    same(result_of(torch.add, s, s, policy=policy), s.half() + s.half())
    same(result_of(torch.matmul, h, h, policy=policy), h.float() @ h.float())
    same(result_of(torch.mul, h, s, policy=policy), h.float() * s)
    same(result_of(torch.sub, h, s, policy=policy), h - s.half())
    # Softmax is in no list of this policy, so it keeps its type.
    same(result_of(lambda x: F.softmax(x, -1), h, policy=policy), F.softmax(h, -1))


def test_policy_when_a_list_is_left_out_then_has_the_default_one():
    policy = poptorch.autocasting.Policy(fp32=[torch.nn.functional.linear])
    x, w = torch.randn(3, 4, dtype=_HALF), torch.randn(5, 4)
    same(result_of(F.linear, x, weights=[w], policy=policy), F.linear(x.float(), w))
    same(result_of(torch.matmul, x, w.t().contiguous(), policy=policy), x @ w.t().half())
    same(result_of(lambda x: F.softmax(x, -1), x, policy=policy), F.softmax(x, -1))


@pytest.mark.parametrize("listed", [nn.Linear, "torch.nn.Linear"])
def test_policy_when_it_lists_a_module_then_decides_for_what_happens_inside(listed):
    inside = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    policy = poptorch.autocasting.Policy(fp16=[nn.Sigmoid], fp32=[listed])
    x = torch.randn(3, 4, dtype=_HALF)
    actual = result_of(inside, x, policy=policy)
    same(actual, torch.sigmoid(inside[0](x.float()).half()))


def test_policy_when_it_lists_a_users_module_then_reaches_the_modules_in_it():
    class Encoder(nn.Sequential):
        pass

    encoder = Encoder(nn.Linear(4, 4), nn.ReLU(inplace=True))
    policy = poptorch.autocasting.Policy(fp16=[], fp32=[Encoder])
    x = torch.randn(3, 4, dtype=_HALF)
    same(result_of(encoder, x, policy=policy), copy.deepcopy(encoder)(x.float()))


def test_policy_when_an_operation_is_in_two_lists_then_refuses():
    with pytest.raises(ValueError, match="add is in the lists fp16 and promote"):
        poptorch.autocasting.Policy(fp16=[torch.add], promote=["add"])
    with pytest.raises(ValueError, match="not 3"):
        poptorch.autocasting.Policy(fp16=[3])


def test_policy_then_is_copied_pickled_and_shown_with_the_options():
    opts = poptorch.Options()
    opts.Precision.autocastPolicy(poptorch.autocasting.Policy([torch.add], [], [], []))
    assert "Policy(fp16=['add'], fp32=[], promote=[], demote=[])" in repr(opts)
    for other in (opts.clone(), pickle.loads(pickle.dumps(opts))):
        assert repr(other) == repr(opts)


def test_regions_then_nest_and_end():
    def function(x, w):
        with poptorch.autocast(False):
            outside = F.linear(x, w)
        return F.linear(x, w), outside, inner(x, w), plain(x, w)

    @poptorch.autocast(enabled=False)
    def inner(x, w):
        return F.linear(x, w)

    @poptorch.autocast()
    def plain(x, w):
        return F.linear(x, w)

    x, w = torch.randn(3, 4), torch.randn(5, 4)
    results = result_of(function, x, weights=[w])
    assert [r.dtype for r in results] == [_HALF, _SINGLE, _SINGLE, _HALF]
    # The end of the region also ends the effect of `enabled`.
    results = result_of(function, x, weights=[w], enabled=False)
    assert [r.dtype for r in results] == [_SINGLE, _SINGLE, _SINGLE, _HALF]
    assert inner(x, w).dtype is plain(x, w).dtype is _SINGLE


def test_autocast_when_disabled_by_the_options_then_does_nothing():
    opts = options()
    assert opts.Precision.autocastEnabled(False) is opts.Precision
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    same(poptorch.inferenceModel(Model(F.linear, w), opts)(x), F.linear(x, w))


def test_operations_in_place_when_autocast_then_still_change_their_tensor():
    def function(x):
        y = x * 1.0
        y.add_(torch.ones_like(y).half())
        F.relu(y, inplace=True)
        return y, torch.add(y, y, out=torch.empty_like(y))

    policy = poptorch.autocasting.Policy(fp16=["relu", "add"], fp32=[], promote=[], demote=[])
    x = torch.randn(3, 4)
    expected = F.relu(x + 1)
    y, twice = result_of(function, x, policy=policy)
    same(y, expected)
    same(twice, expected * 2)


def test_batch_norm_when_autocast_then_updates_its_statistics():
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        @poptorch.autocast()
        def forward(self, x, target):
            y = self.norm(x.half())
            return y, F.mse_loss(y, target)

    model = Normalised()
    reference = copy.deepcopy(model)
    x, target = torch.randn(8, 4), torch.randn(8, 4)
    training = poptorch.trainingModel(model, options())
    y, _ = training(x, target)
    same(y, reference.norm(x.half().float()))
    torch.testing.assert_close(model.norm.running_mean, reference.norm.running_mean)


class Network(nn.Module):
    """A small classifier with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 3)

    def forward(self, x, target):
        with poptorch.autocast():
            hidden = torch.relu(self.norm(self.first(x)))
            out = self.second(hidden)
            return out, F.cross_entropy(out, target)


def by_hand(model, x, target):
    """The same as `Network`, with the casts of the default policy written out."""
    hidden = F.linear(x.half(), model.first.weight.half(), model.first.bias.half())
    hidden = torch.relu(F.layer_norm(hidden.float(), (8,), model.norm.weight, model.norm.bias))
    out = F.linear(hidden.half(), model.second.weight.half(), model.second.bias.half())
    return out, F.cross_entropy(out.float(), target)


def test_training_when_autocast_then_equals_plain_pytorch_with_casts_by_hand():
    model = Network()
    reference = copy.deepcopy(model)
    training = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.5)
    )
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 6, generator=generator)
        target = torch.randint(0, 3, (16,), generator=generator)
        out, loss = training(x, target)
        optimizer.zero_grad()
        expected_out, expected_loss = by_hand(reference, x, target)
        expected_loss.backward()
        optimizer.step()
        same(out, expected_out)
        torch.testing.assert_close(loss, expected_loss, rtol=2e-3, atol=2e-3)
    before = Network().state_dict()
    for (name, actual), expected in zip(
        model.named_parameters(), reference.parameters(), strict=True
    ):
        assert actual.dtype is _SINGLE
        torch.testing.assert_close(actual, expected, rtol=5e-3, atol=2e-3, msg=name)
        assert not torch.equal(actual, before[name])


class FirstResult(nn.Module):
    """Calls a module with `times` copies of its input, and returns the first result."""

    def __init__(self, inner, times) -> None:
        super().__init__()
        self.inner = inner
        self.times = times

    def forward(self, x):
        return self.inner(*[x] * self.times)[0]


@pytest.mark.parametrize(
    "module",
    [
        FirstResult(nn.LSTM(4, 5, batch_first=True), 1),
        FirstResult(nn.GRU(4, 5, batch_first=True), 1),
        FirstResult(nn.MultiheadAttention(4, 2, batch_first=True), 3),
    ],
    ids=["lstm", "gru", "attention"],
)
def test_composite_layer_when_autocast_then_is_float16_as_a_whole(module):
    x = torch.randn(2, 3, 4)
    actual = result_of(module, x)
    assert actual.dtype is _HALF
    torch.testing.assert_close(actual.float(), module(x), rtol=2e-2, atol=2e-2)
