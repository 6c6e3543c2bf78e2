"""Which function of Keras computes what one of TensorFlow means.

A row has the name in TensorFlow, that in `keras.ops`, and TensorFlow's parameters in the order in
which Keras takes them. What needs more than that is in `function_forms`.
"""

from __future__ import annotations

UNARY = {
    "abs": "absolute", "math.acos": "arccos", "math.acosh": "arccosh", "math.asin": "arcsin",
    "math.asinh": "arcsinh", "math.atan": "arctan", "math.atanh": "arctanh", "math.ceil": "ceil",
    "math.cos": "cos", "math.cosh": "cosh", "math.erf": "erf", "math.exp": "exp",
    "math.expm1": "expm1", "math.floor": "floor", "math.is_finite": "isfinite",
    "math.is_inf": "isinf", "math.is_nan": "isnan", "math.log": "log", "math.log1p": "log1p",
    "math.logical_not": "logical_not", "math.negative": "negative", "math.reciprocal": "reciprocal",
    "math.rint": "round", "math.round": "round", "math.rsqrt": "rsqrt", "math.sigmoid": "sigmoid",
    "math.sign": "sign", "math.sin": "sin", "math.sinh": "sinh", "math.softplus": "softplus",
    "math.sqrt": "sqrt", "math.square": "square", "math.tan": "tan", "math.tanh": "tanh",
    "nn.elu": "elu", "nn.relu": "relu", "nn.relu6": "relu6", "nn.selu": "selu",
    "nn.softsign": "softsign", "stop_gradient": "stop_gradient",
}  # fmt: skip

BINARY = {
    # Of tensors, `+`, `==` and `!=` are functions of their own.
    "__operators__.add": "add", "__operators__.eq": "equal", "__operators__.ne": "not_equal",
    "math.add": "add", "math.atan2": "arctan2", "math.divide": "true_divide",
    "math.divide_no_nan": "divide_no_nan", "math.equal": "equal",
    "math.floordiv": "floor_divide", "math.floormod": "mod", "math.greater": "greater",
    "math.greater_equal": "greater_equal", "math.less": "less", "math.less_equal": "less_equal",
    "math.logical_and": "logical_and", "math.logical_or": "logical_or",
    "math.logical_xor": "logical_xor", "math.maximum": "maximum", "math.minimum": "minimum",
    "math.multiply": "multiply", "math.not_equal": "not_equal", "math.pow": "power",
    "math.subtract": "subtract", "math.truediv": "true_divide", "realdiv": "true_divide",
}  # fmt: skip

REDUCTIONS = {
    "math.reduce_all": "all", "math.reduce_any": "any", "math.reduce_logsumexp": "logsumexp",
    "math.reduce_max": "max", "math.reduce_mean": "mean", "math.reduce_min": "min",
    "math.reduce_prod": "prod", "math.reduce_std": "std", "math.reduce_sum": "sum",
    "math.reduce_variance": "var",
}  # fmt: skip

OTHERS = {
    "broadcast_to": ("broadcast_to", "input shape"),
    "cast": ("cast", "x dtype"),
    "clip_by_value": ("clip", "t clip_value_min clip_value_max"),
    "concat": ("concatenate", "values axis"),
    "expand_dims": ("expand_dims", "input axis"),
    "math.top_k": ("top_k", "input k sorted"),
    "math.unsorted_segment_max": ("segment_max", "data segment_ids num_segments"),
    "math.unsorted_segment_sum": ("segment_sum", "data segment_ids num_segments"),
    "nn.gelu": ("gelu", "features approximate"),
    "nn.leaky_relu": ("leaky_relu", "features alpha"),
    "nn.moments": ("moments", "x axes keepdims"),
    "ones_like": ("ones_like", "input dtype"),
    "repeat": ("repeat", "input repeats axis"),
    "reshape": ("reshape", "tensor shape"),
    "reverse": ("flip", "tensor axis"),
    "roll": ("roll", "input shift axis"),
    "squeeze": ("squeeze", "input axis"),
    "stack": ("stack", "values axis"),
    "tensor_scatter_nd_update": ("scatter_update", "tensor indices updates"),
    "tensordot": ("tensordot", "a b axes"),
    "tile": ("tile", "input multiples"),
    "transpose": ("transpose", "a perm"),
    "unstack": ("unstack", "value num axis"),
    "zeros_like": ("zeros_like", "input dtype"),
}
