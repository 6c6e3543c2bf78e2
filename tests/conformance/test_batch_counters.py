"""`num_batches_tracked` and cumulative averages: the counts of plain PyTorch, for all readers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("num_batches_tracked", fidelity="exact")
cumulative = pytest.mark.feature("BatchNorm(momentum=None)", fidelity="exact")


class Model(nn.Module):
    """Applies `norm` to its input several times; the mean square is the loss."""

    def __init__(self, norm: nn.Module, *, times: int = 1) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.norm, self.times = norm, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.norm(x * self.scale)
        return poptorch.identity_loss(x.square().mean(), "none")


def wrapped(model, opts=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, opts or options(), optimizer)


def train_plain(model, batches, accumulation=1):
    """Trains in plain PyTorch with the same gradient accumulation; a batch is a micro-batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches):
        if number % accumulation == 0:
            optimizer.zero_grad()
        (model(batch) / accumulation).backward()
        if (number + 1) % accumulation == 0:
            optimizer.step()


def assert_same_state(left, right):
    torch.testing.assert_close(dict(left.state_dict()), dict(right.state_dict()))


def data(*shape):
    return torch.randn(*shape) + torch.arange(float(shape[0])).reshape(-1, *[1] * (len(shape) - 1))


NORMS = {
    "1d": (lambda **more: nn.BatchNorm1d(3, **more), (4, 3)),
    "1d long": (lambda **more: nn.BatchNorm1d(3, **more), (2, 3, 5)),
    "2d": (lambda **more: nn.BatchNorm2d(3, affine=False, **more), (2, 3, 2, 2)),
    "3d": (lambda **more: nn.BatchNorm3d(3, **more), (2, 3, 2, 2, 1)),
    "sync": (lambda **more: nn.SyncBatchNorm(3, **more), (2, 3, 2)),
    "instance": (lambda **more: nn.InstanceNorm1d(3, track_running_stats=True, **more), (2, 3, 4)),
}


@cumulative
@pytest.mark.parametrize("momentum", [0.1, 1.0, 0.0, None])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", NORMS)
def test_norm_when_trained_then_statistics_and_counter_are_those_of_pytorch(
    kind: str, times: int, momentum: float | None, caplog
) -> None:
    make, shape = NORMS[kind]
    model = Model(make(momentum=momentum), times=times)
    plain = copy.deepcopy(model)
    training = wrapped(model, options(iterations=2, accumulation=3))
    caplog.clear()
    for _ in range(2):
        x = data(6 * shape[0], *shape[1:])
        training(x)
        train_plain(plain, x.split(shape[0]), accumulation=3)
        assert_same_state(model, plain)
    training.destroy()
    assert_same_state(model, plain)
    assert "constant" not in caplog.text


@cumulative
@pytest.mark.parametrize("momentum", [0.1, None])
def test_norm_when_resumed_from_a_state_dict_then_goes_on_as_pytorch(momentum) -> None:
    batches = data(8, 4, 3)
    model = Model(nn.BatchNorm1d(3, momentum=momentum))
    plain = copy.deepcopy(model)
    train_plain(plain, batches[:5])
    model.load_state_dict(copy.deepcopy(plain.state_dict()))
    training = wrapped(model)
    training(batches[5])
    saved = copy.deepcopy(model.state_dict())
    train_plain(plain, batches[5:6])
    assert_same_state(model, plain)
    training(batches[6])
    training.load_state_dict(saved)  # Discards the device's updates since then.
    training(batches[7])
    training.detachFromDevice()
    training(batches[6])
    training.destroy()
    train_plain(plain, batches[[7, 6]])
    assert_same_state(model, plain)


@cumulative
@pytest.mark.parametrize("momentum", [0.1, None])
def test_norm_when_inference_runs_it_in_train_mode_then_a_copy_home_shows_it(momentum) -> None:
    model = Model(nn.BatchNorm1d(3, momentum=momentum))
    plain = copy.deepcopy(model)
    x = data(12, 3)
    inference = poptorch.inferenceModel(model, options(iterations=3))
    inference(x), inference(x)
    assert model.norm.num_batches_tracked == 0
    inference.copyWeightsToHost()
    with torch.no_grad():
        for batch in (*x.split(4), *x.split(4)):
            plain(batch)
    assert_same_state(model, plain)
    inference.copyWeightsToHost()
    assert_same_state(model, plain)
    inference(x)
    inference.copyWeightsToDevice()
    inference.copyWeightsToHost()
    assert_same_state(model, plain)


@cumulative
@pytest.mark.parametrize("momentum", [0.1, None])
def test_norm_when_in_evaluation_then_nothing_is_counted(momentum, caplog) -> None:
    model = Model(nn.BatchNorm1d(3, momentum=momentum))
    train_plain(model, data(2, 4, 3))
    model.norm.eval().requires_grad_(False)
    before = copy.deepcopy(model.norm.state_dict())
    inference = poptorch.inferenceModel(model.eval(), options())
    torch.testing.assert_close(inference(x := data(4, 3)), model(x).detach())
    assert inference.copyWeightsToHost() is None
    torch.testing.assert_close(dict(model.norm.state_dict()), dict(before), rtol=0, atol=0)
    assert caplog.text == ""


@cumulative
@pytest.mark.parametrize("momentum", [0.1, None])
def test_norm_with_replicas_then_each_counts_its_own_and_the_first_is_read(momentum) -> None:
    model = Model(nn.BatchNorm1d(3, momentum=momentum, affine=False))
    plain = copy.deepcopy(model)
    opts = options(accumulation=2).replicationFactor(2).broadcastBuffers(False)
    training = wrapped(model, opts)
    x = data(16, 3)
    training(x)
    training.destroy()
    with torch.no_grad():
        for batch in x.split(4)[::2]:  # Replicas take turns with micro-batches.
            plain(batch)
    assert_same_state(model.norm, plain.norm)


@cumulative
def test_cumulative_average_when_stages_are_pipelined_then_is_that_of_pytorch() -> None:
    class Staged(Model):
        def forward(self, x):
            with poptorch.Block("first", ipu_id=0):
                x = self.norm(x * self.scale)
            with poptorch.Block("second", ipu_id=1):
                return poptorch.identity_loss(x.square().mean(), "none")

    model = Staged(nn.BatchNorm1d(3, momentum=None))
    plain = copy.deepcopy(model)
    training = wrapped(model, options(accumulation=4))
    x = data(16, 3)
    training(x)
    training.destroy()
    train_plain(plain, x.split(4), accumulation=4)
    assert_same_state(model, plain)


@cumulative
def test_cumulative_average_of_half_statistics_then_is_near_that_of_pytorch() -> None:
    model = Model(nn.BatchNorm1d(3, momentum=None)).half()
    plain = copy.deepcopy(model)
    batches = torch.randn(6, 4, 3).half() + 2
    training = wrapped(model)
    with torch.no_grad():
        for batch in batches:
            training(batch)
            plain(batch)
    training.destroy()
    assert model.norm.running_mean.dtype is torch.float16
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(
            getattr(model.norm, name), getattr(plain.norm, name), rtol=4e-3, atol=4e-3
        )


@cumulative
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("way", ["cache", "file"])
def test_norm_of_a_stored_program_then_counts_as_before(momentum, way: str, tmp_path) -> None:
    x = data(4, 3)
    for count in (0, 7):
        model = Model(nn.BatchNorm1d(3, momentum=momentum), times=2)
        model.norm.num_batches_tracked.fill_(count)
        plain = copy.deepcopy(model)
        opts = options()
        if way == "cache":
            opts.enableExecutableCaching(str(tmp_path))
        training = wrapped(model, opts)
        if way == "file" and count:
            training.loadExecutable(tmp_path / "model.poptorch")
        training(x)
        if way == "file":
            training.save(tmp_path / "model.poptorch")
        training.destroy()
        train_plain(plain, [x])
        assert_same_state(model, plain)
    assert len(list(tmp_path.glob("*.executable"))) == (way == "cache")


class Renormalised(nn.Module):
    """A layer that computes with its counter, as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x):
        limit = (0.5 * self.num_batches_tracked + 1.0).clamp(1.0, 3.0)
        if self.training:
            self.average += 0.1 * (x.detach().mean(0) - self.average)
            self.num_batches_tracked += 1
        corrected = self.average / (1 - 0.9 ** (self.num_batches_tracked + 1e-3))
        return (x - corrected).clamp(-limit, limit)


class Assigned(nn.BatchNorm1d):
    """Counts and averages by assignment, as norms of older releases do."""

    def forward(self, x):
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        if self.training:
            self.num_batches_tracked = self.num_batches_tracked + 1
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
            self.running_var = 0.9 * self.running_var + 0.1 * variance.detach()
        return (x - mean) / (variance + self.eps).sqrt() + 0.1 * self.running_mean


class CountsRows(nn.BatchNorm1d):
    """A norm that also counts rows, even in evaluation."""

    def forward(self, x):
        self.num_batches_tracked.add_(x.shape[0])
        self.num_batches_tracked += 2
        return super().forward(x)


class CountsByTensor(nn.BatchNorm1d):
    """A norm that adds a number from the data to its counter."""

    def forward(self, x):
        self.num_batches_tracked.add_((x > 1).sum())
        return super().forward(x)


class Doubles(nn.BatchNorm1d):
    """A norm whose counter is not only increased."""

    def forward(self, x):
        self.num_batches_tracked.mul_(2).sub_(1)
        return super().forward(x)


OWN_LAYERS = {
    "computes": Renormalised,
    "assigns": lambda: Assigned(3),
    "rows": lambda: CountsRows(3),
    "tensor": lambda: CountsByTensor(3),
    "doubles": lambda: Doubles(3),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", OWN_LAYERS)
def test_counter_of_a_layer_of_ones_own_then_is_that_of_pytorch(kind: str, times: int) -> None:
    model = Model(OWN_LAYERS[kind](), times=times)
    plain = copy.deepcopy(model)
    training = wrapped(model, options(iterations=2))
    for _ in range(2):
        x = data(8, 3)
        training(x)
        train_plain(plain, x.split(4))
        assert_same_state(model, plain)
    inference = poptorch.inferenceModel(model.eval(), options())
    torch.testing.assert_close(inference(x), plain.eval()(x).detach())
    model.train(), plain.train()
    training(x)
    train_plain(plain, x.split(4))
    model.eval(), plain.eval()
    torch.testing.assert_close(inference(x), plain(x).detach())
    training.destroy()


def test_counter_when_returned_then_is_that_of_this_micro_batch() -> None:
    class Returning(Model):
        def forward(self, x):
            loss = super().forward(x)
            return loss, self.norm.num_batches_tracked

    model = Returning(nn.BatchNorm1d(3))
    training = wrapped(model, options(iterations=3))
    assert training(data(12, 3))[1].tolist() == [1, 2, 3]
    assert training(data(12, 3))[1].tolist() == [4, 5, 6]
    training.destroy()
    assert model.norm.num_batches_tracked == 6


def test_counter_of_several_and_shared_norms_then_each_is_counted() -> None:
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.BatchNorm1d(3) for _ in range(4))
            self.alias = self.norms[1]
            self.norms[2].eval().requires_grad_(False)

        def forward(self, x):
            x = self.norms[1](self.alias(x))
            x = self.norms[0](self.norms[2](x.detach()))
            return poptorch.identity_loss(x.square().mean(), "none")

    model = Several()
    plain = copy.deepcopy(model)
    training = wrapped(model)
    training(x := data(4, 3))
    train_plain(plain, [x])
    assert_same_state(model, plain)
    assert [norm.num_batches_tracked.item() for norm in model.norms] == [1, 2, 0, 0]
    training.destroy()


class LooksFirst(nn.BatchNorm1d):
    def forward(self, x):
        if self.num_batches_tracked == 0:
            x = x * 2
        return super().forward(x)


class LooksAfterwards(nn.BatchNorm1d):
    def forward(self, x):
        self.num_batches_tracked += 1
        share = 1.0 / float(self.num_batches_tracked)
        return F.batch_norm(x, self.running_mean, self.running_var, training=True, momentum=share)


@pytest.mark.parametrize("kind", [LooksFirst, LooksAfterwards])
def test_counter_when_its_value_is_looked_at_in_training_then_is_refused_with_the_line(
    kind,
) -> None:
    with pytest.raises(
        poptorch.Error, match=r"(item.*|norm.num_batches_tracked) at .*test_batch_counters.py"
    ):
        wrapped(Model(kind(3)))(data(4, 3))
    model = Model(LooksFirst(3)).eval()
    inference = poptorch.inferenceModel(model, options())
    torch.testing.assert_close(inference(x := data(4, 3)), model(x).detach())


def test_average_when_assigned_another_shape_then_is_refused() -> None:
    class Other(nn.BatchNorm1d):
        def forward(self, x):
            self.running_mean = x.mean()
            return x

    with pytest.raises(poptorch.Error, match="running_mean is reassigned within the model"):
        wrapped(Model(Other(3)))(data(4, 3))


def test_counter_of_a_norm_in_a_loop_then_stays_as_its_average_does() -> None:
    class Looped(Model):
        def forward(self, x):
            (x,) = poptorch.for_loop(3, lambda y: self.norm(y * self.scale), [x])
            return poptorch.identity_loss(x.square().mean(), "none")

    model = Looped(nn.BatchNorm1d(3))
    training = wrapped(model)
    training(data(4, 3))
    training.destroy()
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(model.norm.running_mean, torch.zeros(3))
