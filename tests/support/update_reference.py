"""The optimisers' rules for Python floats (float64), written from the published formulas.

SGD: PopTorch's documented rule. Adam: Kingma and Ba, arXiv 1412.6980, algorithm 1. AdamW:
Loshchilov and Hutter, arXiv 1711.05101, algorithm 2. LAMB: You et al., arXiv 1904.00962, algorithm
2. RMSprop: Hinton's lecture 6e; centered: Graves, arXiv 1308.0850, equations 38 to 45.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

Vector = list[float]
Rounding = Callable[[float], float]


def exact(value: float) -> float:
    return value


def half(value: float) -> float:
    """Returns `value` rounded to float16."""
    return struct.unpack("e", struct.pack("e", value))[0]


def sgd(
    w: float,
    gradients: Vector,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: float = 0.0,
    has_velocity: bool = True,
    first: Rounding = exact,
) -> float:
    v = 0.0
    for g in gradients:
        if not has_velocity:
            kept = 1 - lr * (1 - dampening) * weight_decay
            w = w * kept - lr * (1 - dampening) * g
            continue
        new_v = momentum * v + (1 - dampening) * (g + weight_decay * w)
        w = w - lr * ((g + weight_decay * w + momentum * new_v) if nesterov else new_v)
        v = first(new_v)
    return w


def adam(
    w: float,
    gradients: Vector,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    is_decoupled: bool,
    first: Rounding = exact,
    second: Rounding = exact,
) -> float:
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        if not is_decoupled:
            g = g + weight_decay * w
        new_m = beta1 * m + (1 - beta1) * g
        new_v = beta2 * v + (1 - beta2) * g * g
        m_hat = new_m / (1 - beta1**t)
        v_hat = new_v / (1 - beta2**t)
        u = m_hat / (math.sqrt(v_hat) + eps)
        w = w - lr * (u + (weight_decay * w if is_decoupled else 0.0))
        m, v = first(new_m), second(new_v)
    return w


def rmsprop(
    w: float,
    gradients: Vector,
    *,
    lr: float,
    alpha: float,
    eps: float,
    momentum: float,
    weight_decay: float,
    is_centered: bool = False,
    is_tensorflow: bool = False,
) -> float:
    s = 1.0 if is_tensorflow else 0.0
    a = b = 0.0
    for g in gradients:
        g = g + weight_decay * w
        s = alpha * s + (1 - alpha) * g * g
        a = alpha * a + (1 - alpha) * g
        spread = s - a * a if is_centered else s
        if is_tensorflow:
            b = momentum * b + lr * g / math.sqrt(spread + eps)
            w = w - b
        else:
            b = momentum * b + g / (math.sqrt(spread) + eps)
            w = w - lr * b
    return w


def lamb(
    w: Vector,
    gradients: list[Vector],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    max_weight_norm: float,
    is_corrected: bool,
) -> Vector:
    m, v = [0.0] * len(w), [0.0] * len(w)
    for t, g in enumerate(gradients, start=1):
        c1, c2 = (1 - beta1**t, 1 - beta2**t) if is_corrected else (1.0, 1.0)
        m = [beta1 * old + (1 - beta1) * new for old, new in zip(m, g, strict=True)]
        v = [beta2 * old + (1 - beta2) * new**2 for old, new in zip(v, g, strict=True)]
        q = [
            (m_i / c1) / (math.sqrt(v_i / c2) + eps) + weight_decay * w_i
            for m_i, v_i, w_i in zip(m, v, w, strict=True)
        ]
        r1, r2 = min(math.hypot(*w), max_weight_norm), math.hypot(*q)
        ratio = r1 / r2 if r1 != 0 and r2 != 0 else 1.0
        w = [w_i - lr * ratio * q_i for w_i, q_i in zip(w, q, strict=True)]
    return w
