"""The limit on the global norm of the gradients."""

import math

import pytest
import torch

from poptorch_emu.update.formulas.clipping import clip_scale, global_norm


def _gradients():
    return [torch.randn(3, 4), torch.randn(5), torch.randn(())]


def test_global_norm_when_several_tensors_then_is_that_of_all_elements():
    gradients = _gradients()
    expected = math.hypot(*torch.cat([g.flatten() for g in gradients]).tolist())
    torch.testing.assert_close(global_norm(gradients), torch.tensor(expected))
    torch.testing.assert_close(global_norm(gradients[:1]), gradients[0].norm())


def test_global_norm_when_of_norms_then_is_the_norm_of_everything():
    gradients = _gradients()
    parts = [global_norm(gradients[:2]), global_norm(gradients[2:])]
    torch.testing.assert_close(global_norm(parts), global_norm(gradients))


@pytest.mark.parametrize(("limit", "expected"), [(5.0, 1.0), (10.0, 1.0), (4.999, 0.9998)])
def test_clip_scale_when_norm_is_five_then_limits_it(limit, expected):
    scale = clip_scale([torch.tensor([3.0, 0.0]), torch.tensor([4.0])], limit)
    torch.testing.assert_close(scale, torch.tensor(expected))


def test_clip_scale_when_used_then_agrees_with_torch():
    gradients = _gradients()
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(parameters, 0.5)
    scale = clip_scale(gradients, 0.5)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        # PyTorch adds 1e-6 to the norm.
        torch.testing.assert_close(gradient * scale, parameter.grad, rtol=1e-5, atol=1e-7)


def test_clip_scale_when_all_gradients_are_zero_then_is_one():
    assert clip_scale([torch.zeros(3)], 1.0).item() == 1.0


def test_clip_scale_when_half_gradients_then_norm_does_not_overflow():
    gradients = [torch.full((4,), 60000.0, dtype=torch.float16)]
    torch.testing.assert_close(clip_scale(gradients, 1200.0), torch.tensor(0.01))
