"""Judges whether an updated weight agrees with the optimiser's formula for the gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from poptorch_emu.compile.compiler import Request
from poptorch_emu.enums import ReductionType
from poptorch_emu.numbers.engine_run import Start
from poptorch_emu.numbers.rounding import gamma, likely_gamma, underflow, unit_roundoff
from poptorch_emu.numbers.run import FIRST, Run, gradient_name, updated_name
from poptorch_emu.numbers.verdicts import Judgement, Verdict, relative_distance
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig
from poptorch_emu.update.formulas.rules import state_names, update

# Assumed: the longest formula of an optimiser has at most 32 roundings in float32.
_NUM_ROUNDINGS = 32
_NUM_SAMPLES = 3


@dataclass(frozen=True)
class UpdateJudge:
    """Judges the updated weights of two runs.

    Attributes:
        request: model and optimiser of our window.
        start: weights and state at the start of both windows.
        ours: this run.
        theirs: the other run.
    """

    request: Request
    start: Start
    ours: Run
    theirs: Run

    def __call__(self, ours: int, theirs: int) -> Judgement | None:
        """Returns the judgement on two weights; `None` if updates cannot be judged."""
        optimizer = self.request.optimizer
        if optimizer is None or _hindrance(self.request):
            return None
        name = self.ours.values[ours].name.removeprefix(updated_name(""))
        if name not in self.request.parameters:
            return self._of_state(ours, theirs, optimizer)
        worst = Verdict.REORDERED
        for run, number, whose in (
            (self.theirs, theirs, "The other run's weight"),
            (self.ours, ours, "This run's weight"),
        ):
            verdict = self._of(run, number, name, optimizer)
            if verdict is None:
                return None
            if verdict is Verdict.DIFFERENT:
                return Judgement(
                    verdict,
                    f"{whose} is not what the optimizer makes of that run's gradients.",
                )
            worst = max(worst, verdict)
        return Judgement(worst)

    def _of_state(self, ours: int, theirs: int, optimizer: OptimizerConfig) -> Judgement | None:
        """Returns the judgement on two states, which may differ by the rounding of gradients."""
        one, two = self.ours.read(ours, FIRST), self.theirs.read(theirs, FIRST)
        if one is None or two is None or not one.is_floating_point():
            return None
        unit = unit_roundoff(optimizer.accum_type) * len(self.ours.positions) * _NUM_ROUNDINGS
        is_near = relative_distance(one, two) <= unit
        reason = "" if is_near else "The state of the optimizer differs between the two runs."
        return Judgement(Verdict.REORDERED if is_near else Verdict.DIFFERENT, reason)

    def _of(self, run: Run, number: int, name: str, optimizer: OptimizerConfig) -> Verdict | None:
        tensor = run.read(number, FIRST)
        gradients = self._gradients(run, name)
        if tensor is None or gradients is None:
            return None
        mean, before = gradients.mean, self._before(run, name)

        def stepped(gradient: torch.Tensor) -> torch.Tensor:
            return _stepped(self.request, self.start, (name, before, gradient)).double()

        unit, exact = (
            unit_roundoff(torch.float32),
            _stepped(self.request, self.start, (name, before, mean)),
        )
        # This bound is cheap and at most half of `own` below, so a weight within it needs no more
        # checks.
        least = gamma(_NUM_ROUNDINGS, unit) / 4 * (exact.abs() + before.abs())
        if bool(((tensor - exact).abs_() <= least).all()):
            return Verdict.REORDERED
        exact, kept = exact.double(), before.double()
        magnitude, count = gradients.magnitude, gradients.num_terms
        own = gamma(_NUM_ROUNDINGS, unit) * ((exact - kept).abs() + kept.abs())
        own = own + unit_roundoff(tensor.dtype) * exact.abs() + underflow(tensor.dtype)
        off = (tensor.double() - exact).abs()
        # The effect of inexact gradients takes four more updates to compute, and is seldom needed.
        if bool((off <= own).all()):
            return Verdict.REORDERED
        if bool((off <= own + _spread(stepped, mean, gamma(count, unit) * magnitude)).all()):
            return Verdict.REORDERED
        if optimizer.accum_type is torch.float32:
            return Verdict.DIFFERENT
        short = optimizer.accum_type
        loose = likely_gamma(count, unit_roundoff(short)) * magnitude + count * underflow(short)
        is_near = bool((off <= own + _spread(stepped, mean, loose)).all())
        return Verdict.LESS_PRECISION if is_near else Verdict.DIFFERENT

    def _gradients(self, run: Run, name: str) -> _Reduced | None:
        """Returns the gradients of a weight in a run; `None` if any micro-batch has none."""
        number = next((i for i, v in enumerate(run.values) if v.name == gradient_name(name)), None)
        if number is None:
            return None
        found = [run.read(number, position) for position in run.positions]
        terms = [tensor for tensor in found if tensor is not None]
        if len(terms) != len(run.positions):
            return None
        return _Reduced(terms, _divisor(self.request, len(terms)))

    def _before(self, run: Run, name: str) -> torch.Tensor:
        """Returns the weight at the start of a run."""
        number = next((i for i, v in enumerate(run.values) if v.name == name), None)
        weight = None if number is None else run.read(number, FIRST)
        return self.start.weights[name].detach() if weight is None else weight


@dataclass(frozen=True)
class _Reduced:
    """The gradient of a weight, reduced over all positions."""

    terms: Sequence[torch.Tensor]
    divisor: float

    @property
    def mean(self) -> torch.Tensor:
        """The sum of all terms, divided by `divisor`."""
        return _sum(self.terms) / self.divisor

    @property
    def magnitude(self) -> torch.Tensor:
        """The sum of the magnitudes of all terms, divided by `divisor`."""
        return _sum([term.abs() for term in self.terms]) / self.divisor

    @property
    def num_terms(self) -> int:
        """Number of roundings in the reduced gradient."""
        return len(self.terms) + 2


def lost_updates(
    request: Request, start: Start, gradients: Mapping[str, torch.Tensor], num_places: int
) -> Mapping[str, float]:
    """Returns, for each weight, the share of its updates that rounding to the nearest loses.

    An update is lost if it is not zero but too small to change the rounded weight.

    Args:
        request: model and optimiser of a window.
        start: weights and state at the start of the window.
        gradients: gradients summed over all micro-batches and replicas, by the weights' names.
        num_places: number of micro-batches in those sums, over all replicas.
    """
    found = {}
    for name, gradient in gradients.items():
        before = start.weights[name].detach()
        mean = gradient / _divisor(request, num_places)
        exact = _stepped(request, start, (name, before, mean))
        is_changed = exact != before.double()
        is_lost = is_changed & (exact.to(before.dtype) == before)
        count = int(is_changed.sum())
        found[name] = int(is_lost.sum()) / count if count else 0.0
    return found


def _sum(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    return (
        terms[0].double() if len(terms) == 1 else torch.stack([*terms]).sum(0, dtype=torch.float64)
    )


def _divisor(request: Request, num_places: int) -> float:
    """Returns the divisor of the sum of a weight's gradients."""
    assert request.optimizer is not None, "a training model"
    scaling = request.optimizer.loss_scaling.value
    return scaling if request.config.reduction_type is ReductionType.Sum else scaling * num_places


def _stepped(
    request: Request, start: Start, trained: tuple[str, torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Returns the weight after the update; `trained` is (name, weight, gradient)."""
    optimizer = request.optimizer
    assert optimizer is not None, "a training model"
    name, weight, gradient = trained
    weight = weight.float()
    group = optimizer.group_of_parameter[request.parameters.index(name)]
    hypers = {key: hyper.value for key, hyper in optimizer.groups[group].hypers}
    state = {}
    for spec in state_names(optimizer, optimizer.groups[group]):
        shape = () if spec.is_scalar else tuple(weight.shape)
        kept = start.states.get(f"{spec.name}___{name}")
        state[spec.name] = (
            torch.full(shape, spec.initial) if kept is None else kept.reshape(shape).float()
        )
    with torch.no_grad():
        new, _ = update(optimizer, group, weight, gradient.float(), state, hypers)
    return new


def _spread(
    stepped: Callable[[torch.Tensor], torch.Tensor], mean: torch.Tensor, slack: torch.Tensor
) -> torch.Tensor:
    """Returns how far a weight may move when its gradient is off by up to `slack`."""
    centre = stepped(mean)
    ends = [(stepped(mean + side * slack) - centre).abs() for side in (-1.0, -0.5, 0.5, 1.0)]
    return 2 * torch.stack(ends).amax(0)


def difficulty(request: Request) -> str:
    """Returns why the update of a weight does not depend on its gradient alone; "" if it does."""
    optimizer = request.optimizer
    if optimizer is None:
        return ""
    if optimizer.clips:
        return "gradients are clipped"
    if optimizer.kind.is_lamb:
        return "LAMB scales by norms"
    if optimizer.loss_scale_rule is not None:
        return "the loss scale is automatic"
    return ""


def _hindrance(request: Request) -> str:
    """Returns why updates cannot be judged; "" if they can."""
    is_random = request.optimizer is not None and request.config.rounds_stochastically
    return difficulty(request) or ("weights are rounded at random" if is_random else "")


def note_of(request: Request) -> str:
    """Returns the note in a report on updates that cannot be judged; "" if they can."""
    reason = _hindrance(request)
    if not reason:
        return ""
    return f"Updates are compared only by their largest difference, because {reason}."


def start_weights(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """Returns a copy of the parameters and buffers of a model, by name."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
