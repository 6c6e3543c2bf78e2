// PyTorch's own C++ rules for the metadata of results, where its dispatcher would use Python rules.
//
// A structured operation computes shape, strides and type of its results in C++. For meta tensors
// PyTorch registers Python rules over many of them, because these also support symbolic sizes. A
// process that uses one loads SymPy and PyTorch's compiler, which takes 75 MiB and a second. A
// trace has no symbolic sizes. This file makes the C++ rules available as operations of a separate
// library, under the names of the original operations, and `trace/fakes/metadata_rules.py` calls
// them. `rules.cpp` has rules for operations that are not structured.

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include "metadata/rules.h"

namespace poptorch_emu::metadata {
namespace {

// Lists the rule of one overload, with its name in `at::_ops` and the function of the rule.
#define RULE(overload, function) \
  METADATA_RULE(overload, (static_cast<at::_ops::overload::schema*>(&at::meta::function)))
#define RULE_SYMINT(overload, function) RULE(overload, function##_symint)

// Lists an operation with one overload, and its in-place variant.
#define RULES(name) \
  RULE(name, name); \
  RULE(name##_, name##_)
// Lists an operation with a second tensor.
#define TENSOR_RULES(name)   \
  RULE(name##_Tensor, name); \
  RULE(name##__Tensor, name##_)
// Lists an operation with a second tensor or a number.
#define COMPARISON(name)     \
  TENSOR_RULES(name);        \
  RULE(name##_Scalar, name); \
  RULE(name##__Scalar, name##_)

void list_functions(Rules& rules) {
  RULES(acos);
  RULES(acosh);
  RULES(asin);
  RULES(asinh);
  RULES(atan);
  RULES(atan2);
  RULES(atanh);
  RULES(bitwise_not);
  RULES(ceil);
  RULES(clamp);
  RULES(clamp_max);
  RULES(clamp_min);
  RULES(cos);
  RULES(cosh);
  RULES(digamma);
  RULES(elu);
  RULES(erf);
  RULES(erfc);
  RULES(erfinv);
  RULES(exp);
  RULES(exp2);
  RULES(expm1);
  RULES(floor);
  RULES(frac);
  RULES(gelu);
  RULES(hardsigmoid);
  RULES(leaky_relu);
  RULES(lgamma);
  RULES(log);
  RULES(log10);
  RULES(log1p);
  RULES(log2);
  RULES(mish);
  RULES(neg);
  RULES(reciprocal);
  RULES(round);
  RULES(rsqrt);
  RULES(sgn);
  RULES(sigmoid);
  RULES(sign);
  RULES(silu);
  RULES(sin);
  RULES(sinc);
  RULES(sinh);
  RULES(sqrt);
  RULES(tan);
  RULES(tanh);
  RULES(threshold);
  RULES(trunc);
  RULE(glu, glu);
  RULE(hardshrink, hardshrink);
  RULE(signbit, signbit);
  RULE(softshrink, softshrink);
  RULE(softplus, softplus);
}

void list_pairs(Rules& rules) {
  RULE(clamp_Tensor, clamp);
  RULE(logaddexp, logaddexp);
  RULE(maximum, maximum);
  RULE(minimum, minimum);
  TENSOR_RULES(add);
  TENSOR_RULES(bitwise_and);
  TENSOR_RULES(bitwise_or);
  TENSOR_RULES(bitwise_xor);
  TENSOR_RULES(clamp_max);
  TENSOR_RULES(clamp_min);
  TENSOR_RULES(div);
  TENSOR_RULES(fmod);
  TENSOR_RULES(mul);
  TENSOR_RULES(remainder);
  TENSOR_RULES(sub);
  TENSOR_RULES(xlogy);
  RULE(div_Tensor_mode, div);
  COMPARISON(eq);
  COMPARISON(ge);
  COMPARISON(gt);
  COMPARISON(le);
  COMPARISON(lt);
  COMPARISON(ne);
  RULES(addcdiv);
  RULES(addcmul);
  RULE(lerp_Scalar, lerp);
  RULE(lerp_Tensor, lerp);
  RULE(pow_Scalar, pow);
  RULE(pow_Tensor_Scalar, pow);
  RULE(pow_Tensor_Tensor, pow);
}

void list_products(Rules& rules) {
  RULES(addmm);
  RULES(addmv);
  RULES(baddbmm);
  RULE(bmm, bmm);
  RULE(mm, mm);
}

void list_reductions(Rules& rules) {
  RULE(_log_softmax, _log_softmax);
  RULE(_softmax, _softmax);
  RULE(all, all);
  RULE(all_dim, all);
  RULE(amax, amax);
  RULE(amin, amin);
  RULE(any, any);
  RULE(any_dim, any);
  RULE(argmax, argmax);
  RULE(argmin, argmin);
  RULE(cumprod, cumprod);
  RULE(cumsum, cumsum);
  RULE(linalg_vector_norm, linalg_vector_norm);
  RULE(max_dim, max);
  RULE(mean_dim, mean);
  RULE(min_dim, min);
  RULE(mse_loss, mse_loss);
  RULE(norm_ScalarOpt_dim, norm);
  RULE(prod_dim_int, prod);
  RULE(smooth_l1_loss, smooth_l1_loss);
  RULE(sort_stable, sort);
  RULE(sum_dim_IntList, sum);
  RULE_SYMINT(nll_loss_forward, nll_loss_forward);
  RULE_SYMINT(topk, topk);
}

void list_windows_and_places(Rules& rules) {
  RULE(adaptive_max_pool2d, adaptive_max_pool2d);
  RULE(avg_pool2d, avg_pool2d);
  RULE(avg_pool3d, avg_pool3d);
  RULE(cat, cat);
  RULE(gather, gather);
  RULES(index_add);
  RULES(index_copy);
  RULE(max_pool2d_with_indices, max_pool2d_with_indices);
  RULES(scatter_add);
  RULE(scatter_reduce_two, scatter_reduce);
  RULE(scatter_src, scatter);
  RULE(scatter__src, scatter_);
  RULE(scatter_value, scatter);
  RULE(scatter__value, scatter_);
  RULE_SYMINT(reflection_pad1d, reflection_pad1d);
  RULE_SYMINT(replication_pad1d, replication_pad1d);
  RULE_SYMINT(tril, tril);
  RULE_SYMINT(triu, triu);
  RULE_SYMINT(upsample_bilinear2d, upsample_bilinear2d);
  RULE_SYMINT(upsample_bicubic2d, upsample_bicubic2d);
  RULE_SYMINT(upsample_linear1d, upsample_linear1d);
  RULE_SYMINT(upsample_nearest1d, upsample_nearest1d);
  RULE_SYMINT(upsample_nearest2d, upsample_nearest2d);
}

void list_gradients(Rules& rules) {
  RULE(_log_softmax_backward_data, _log_softmax_backward_data);
  RULE(_softmax_backward_data, _softmax_backward_data);
  RULE(avg_pool2d_backward, avg_pool2d_backward);
  RULE(adaptive_max_pool2d_backward, adaptive_max_pool2d_backward);
  RULE(elu_backward, elu_backward);
  RULE(gelu_backward, gelu_backward);
  RULE(hardshrink_backward, hardshrink_backward);
  RULE(hardsigmoid_backward, hardsigmoid_backward);
  RULE(leaky_relu_backward, leaky_relu_backward);
  RULE(max_pool2d_with_indices_backward, max_pool2d_with_indices_backward);
  RULE(sigmoid_backward, sigmoid_backward);
  RULE(silu_backward, silu_backward);
  RULE(softplus_backward, softplus_backward);
  RULE(softshrink_backward, softshrink_backward);
  RULE(tanh_backward, tanh_backward);
  RULE(threshold_backward, threshold_backward);
  RULE_SYMINT(nll_loss_backward, nll_loss_backward);
  RULE_SYMINT(reflection_pad1d_backward, reflection_pad1d_backward);
  RULE_SYMINT(upsample_bicubic2d_backward, upsample_bicubic2d_backward);
  RULE_SYMINT(upsample_bilinear2d_backward, upsample_bilinear2d_backward);
  RULE_SYMINT(upsample_linear1d_backward, upsample_linear1d_backward);
  RULE_SYMINT(upsample_nearest1d_backward, upsample_nearest1d_backward);
  RULE_SYMINT(upsample_nearest2d_backward, upsample_nearest2d_backward);
}

}  // namespace

void list_structured_rules(Rules& rules) {
  list_functions(rules);
  list_pairs(rules);
  list_products(rules);
  list_reductions(rules);
  list_windows_and_places(rules);
  list_gradients(rules);
}

#undef COMPARISON
#undef RULE
#undef RULES
#undef RULE_SYMINT
#undef TENSOR_RULES

}  // namespace poptorch_emu::metadata
