// Random operators whose numbers depend only on (seed, micro-batch, replica, operation, element).
//
// Each operator reads `rng`, the int64 state {seed, micro-batch, replica, 0}, and its operation's
// number in the graph. Elements are counted in contiguous order. A float64 or an integer uses 64
// random bits, any other type 32. The same functions are the kernels for CPU and Meta.

#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/searchsorted.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "ops/random_stream.h"

namespace poptorch_emu {
namespace {

using at::IntArrayRef;
using at::ScalarType;
using at::Tensor;
using philox::Words;

// Known answers published with the generator (Random123, kat_vectors).
static_assert(philox::philox4x32({0, 0, 0, 0}, {0, 0}) ==
              Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox::philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                                 {0xffffffff, 0xffffffff}) ==
              Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                                 {0xa4093822, 0x299f31d0}) ==
              Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

// Type of computation: float64 for float64, and float32 for narrower types.
template <typename T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename Lanes, typename Function>
auto map(const Lanes& lanes, const Function& function) {
  std::array<std::invoke_result_t<Function, typename Lanes::value_type>, std::tuple_size_v<Lanes>>
      results;
  std::transform(lanes.begin(), lanes.end(), results.begin(), function);
  return results;
}

std::array<uint64_t, 2> as_uint64(const Words& words) {
  return {words[0] | uint64_t{words[1]} << 32, words[2] | uint64_t{words[3]} << 32};
}

// Returns the words as unsigned integers with the width of `R`: four with 32 bits or two with 64.
template <typename R>
auto as_lanes(const Words& words) {
  if constexpr (std::is_same_v<R, double>) {
    return as_uint64(words);
  } else {
    return words;
  }
}

// Returns numbers uniform in [0, 1), exact in a type with `digits` mantissa bits.
template <typename R>
auto half_open_unit(const Words& words, int digits) {
  const int unused_bits = static_cast<int>(8 * sizeof(R)) - digits;
  const R step = std::ldexp(R{1}, -digits);
  return map(as_lanes<R>(words), [=](auto word) { return R(word >> unused_bits) * step; });
}

// Returns numbers uniform in (0, 1), without 0 and 1, so that logarithms are finite and not 0.
template <typename R>
auto open_unit(const Words& words) {
  constexpr int kDigits = std::numeric_limits<R>::digits - 1;
  return map(half_open_unit<R>(words, kDigits),
             [](R unit) { return unit + std::ldexp(R{0.5}, -kDigits); });
}

// Returns independent standard normal numbers, in pairs (Box and Muller, 1958).
template <typename R>
auto standard_normal(const Words& words) {
  auto values = open_unit<R>(words);
  for (size_t i = 0; i < values.size(); i += 2) {
    const R radius = std::sqrt(-2 * std::log(values[i]));
    const R angle = 2 * std::numbers::pi_v<R> * values[i + 1];
    values[i] = radius * std::cos(angle);
    values[i + 1] = radius * std::sin(angle);
  }
  return values;
}

Tensor allocate(const Tensor& rng, IntArrayRef size, ScalarType dtype) {
  return at::empty(size, rng.options().dtype(dtype));
}

// Fills a new floating-point tensor with the values that `draw` computes from four words. `draw`
// receives a zero of the type in which it computes.
template <typename Draw>
Tensor fill_floating(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype,
                     const Draw& draw) {
  const Tensor out = allocate(rng, size, dtype);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "random", [&] {
    fill<scalar_t>(out, rng, op_id,
                   [&](const Words& words) { return draw(Real<scalar_t>{0}, words); });
  });
  return out;
}

// Fills a tensor with a function of one uniform number in (0, 1) for each element.
template <typename Function>
Tensor fill_from_unit(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype,
                      const Function& function) {
  return fill_floating(rng, op_id, size, dtype, [&](auto zero, const Words& words) {
    using R = decltype(zero);
    return map(open_unit<R>(words), [&](R unit) { return static_cast<R>(function(unit)); });
  });
}

Tensor uniform(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype, double low,
               double high) {
  const Tensor out = allocate(rng, size, dtype);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "uniform", [&] {
    using R = Real<scalar_t>;
    const R from = low;
    const R range = high - low;
    fill<scalar_t>(out, rng, op_id, [&](const Words& words) {
      const auto units = half_open_unit<R>(words, std::numeric_limits<scalar_t>::digits);
      return map(units, [&](R unit) { return from + unit * range; });
    });
  });
  return out;
}

Tensor normal(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype, double mean,
              double std) {
  TORCH_CHECK_VALUE(std >= 0, "normal: std is ", std, "; expected a number >= 0.");
  return fill_floating(rng, op_id, size, dtype, [&](auto zero, const Words& words) {
    using R = decltype(zero);
    return map(standard_normal<R>(words), [&](R value) { return R(mean) + R(std) * value; });
  });
}

Tensor normal_tensor(const Tensor& rng, int64_t op_id, const Tensor& mean, const Tensor& std) {
  const auto size = at::infer_size(mean.sizes(), std.sizes());
  return normal(rng, op_id, size, at::result_type(mean, std), 0, 1).mul_(std).add_(mean);
}

Tensor normal_tensor_float(const Tensor& rng, int64_t op_id, const Tensor& mean, double std) {
  return normal(rng, op_id, mean.sizes(), mean.scalar_type(), 0, std).add_(mean);
}

Tensor normal_float_tensor(const Tensor& rng, int64_t op_id, double mean, const Tensor& std) {
  return normal(rng, op_id, std.sizes(), std.scalar_type(), 0, 1).mul_(std).add_(mean);
}

Tensor log_normal(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype, double mean,
                  double std) {
  return normal(rng, op_id, size, dtype, mean, std).exp_();
}

Tensor exponential(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype,
                   double lambd) {
  return fill_from_unit(rng, op_id, size, dtype,
                        [&](auto unit) { return -std::log(unit) / lambd; });
}

Tensor cauchy(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype, double median,
              double sigma) {
  return fill_from_unit(rng, op_id, size, dtype, [&](auto unit) {
    return median + sigma * std::tan(std::numbers::pi * (unit - 0.5));
  });
}

// Draws the number of trials with probability p until the first success: 1, 2, ...
Tensor geometric(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype, double p) {
  const ScalarType drawn = at::isFloatingType(dtype) ? dtype : at::kFloat;
  return fill_from_unit(rng, op_id, size, drawn,
                        [&](auto unit) { return std::ceil(std::log(unit) / std::log1p(-p)); })
      .to(dtype);
}

// Returns how many of the 2^32 words mean "yes" at probability p.
uint64_t threshold_of(double p) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "p is ", p, "; expected a probability in [0, 1].");
  return static_cast<uint64_t>(std::ldexp(p, 32));
}

Tensor bernoulli(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype, double p) {
  const uint64_t threshold = threshold_of(p);
  const Tensor out = allocate(rng, size, at::kBool);
  fill<bool>(out, rng, op_id, [&](const Words& words) {
    return map(words, [&](uint32_t word) { return word < threshold; });
  });
  return out.to(dtype);
}

Tensor bernoulli_tensor(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype,
                        const Tensor& p) {
  const ScalarType precision = p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::lt(uniform(rng, op_id, size, precision, 0, 1), p).to(dtype);
}

// Returns the scaled input, and `mask` with the elements that remain; the scale is 1 / (1 - p).
std::tuple<Tensor, Tensor> dropout(const Tensor& rng, int64_t op_id, const Tensor& input,
                                   double p) {
  const Tensor in = input.contiguous();
  const Tensor out = at::empty_like(in);
  const Tensor mask = at::empty_like(in, in.options().dtype(at::kBool));
  const uint64_t threshold = threshold_of(1 - p);
  if (out.is_meta()) return {out, mask};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, in.scalar_type(), "dropout", [&] {
    using R = Real<scalar_t>;
    const R scale = p < 1 ? 1 / (1 - p) : 0;
    const scalar_t* from = in.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    bool* stays = mask.mutable_data_ptr<bool>();
    for_each_batch<4>(RandomStream(rng, op_id), in.numel(),
                      [&](const auto& blocks, int64_t first, int64_t count) {
                        const uint32_t* words = blocks.data()->data();
                        for (int64_t i = 0; i < count; ++i) {
                          const bool is_kept = words[i] < threshold;
                          stays[first + i] = is_kept;
                          to[first + i] = R(from[first + i]) * (is_kept ? scale : R{0});
                        }
                      });
  });
  return {out, mask};
}

// Draws integers uniform in [low, high) as the upper half of a 128-bit product; their bias is one
// part in 2^64 / range.
Tensor randint(const Tensor& rng, int64_t op_id, IntArrayRef size, ScalarType dtype, int64_t low,
               int64_t high) {
  TORCH_CHECK_VALUE(low < high, "randint: nothing to draw from [", low, ", ", high,
                    "); expected low < high.");
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const Tensor out = allocate(rng, size, at::kLong);
  fill<int64_t>(out, rng, op_id, [&](const Words& words) {
    return map(as_uint64(words), [&](uint64_t word) {
      const auto product = static_cast<unsigned __int128>(word) * range;
      return static_cast<uint64_t>(low) + static_cast<uint64_t>(product >> 64);
    });
  });
  return out.to(dtype);
}

// Draws a permutation as the ranks of n random numbers.
Tensor randperm(const Tensor& rng, int64_t op_id, int64_t n, ScalarType dtype) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  const Tensor keys = randint(rng, op_id, {n}, at::kLong, 0, kLast);
  return at::argsort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/false).to(dtype);
}

// Draws categories. Without replacement, these are the first n of independent exponential clocks.
Tensor multinomial(const Tensor& rng, int64_t op_id, const Tensor& weights, int64_t n,
                   bool replacement) {
  const int64_t num_categories = weights.size(-1);
  TORCH_CHECK_VALUE(n > 0 && (replacement || n <= num_categories), "multinomial: cannot draw ", n,
                    " of ", num_categories, " categories without replacement.");
  if (n == 1 || !replacement) {
    const Tensor clocks = exponential(rng, op_id, weights.sizes(), weights.scalar_type(), 1);
    return std::get<1>(weights.div(clocks).topk(n, -1));
  }
  const Tensor cumulative = weights.cumsum(-1);
  auto size = weights.sizes().vec();
  size.back() = n;
  const Tensor total = cumulative.narrow(-1, num_categories - 1, 1);
  const Tensor at_weight = uniform(rng, op_id, size, weights.scalar_type(), 0, 1).mul_(total);
  return at::searchsorted(cumulative, at_weight, /*out_int32=*/false, /*right=*/true);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  const auto define = [&m](const char* name, const std::string& arguments, auto function) {
    m.def((name + arguments).c_str());
    for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::Meta}) {
      m.impl(name, torch::dispatch(key, function));
    }
  };
  const std::string rng = "(Tensor rng, int op_id, ";
  const std::string sized = rng + "int[] size, ScalarType dtype, ";
  define("uniform", sized + "float low, float high) -> Tensor", uniform);
  define("normal", sized + "float mean, float std) -> Tensor", normal);
  define("normal.tensor", rng + "Tensor mean, Tensor std) -> Tensor", normal_tensor);
  define("normal.tensor_float", rng + "Tensor mean, float std) -> Tensor", normal_tensor_float);
  define("normal.float_tensor", rng + "float mean, Tensor std) -> Tensor", normal_float_tensor);
  define("log_normal", sized + "float mean, float std) -> Tensor", log_normal);
  define("exponential", sized + "float lambd) -> Tensor", exponential);
  define("cauchy", sized + "float median, float sigma) -> Tensor", cauchy);
  define("geometric", sized + "float p) -> Tensor", geometric);
  define("bernoulli", sized + "float p) -> Tensor", bernoulli);
  define("bernoulli.tensor", sized + "Tensor p) -> Tensor", bernoulli_tensor);
  define("dropout", rng + "Tensor input, float p) -> (Tensor output, Tensor mask)", dropout);
  define("randint", sized + "int low, int high) -> Tensor", randint);
  define("randperm", rng + "int n, ScalarType dtype) -> Tensor", randperm);
  define("multinomial", rng + "Tensor weights, int n, bool replacement) -> Tensor", multinomial);
}

}  // namespace poptorch_emu
