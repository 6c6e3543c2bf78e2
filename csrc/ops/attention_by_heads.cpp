// Attention for inference whose scores stay in a core's cache: small products with PyTorch's
// softmax between them, for a few heads at a time, or a few queries of a long head.
//
// PyTorch's own kernel calls its library for even smaller products.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "common/sharing.h"
#include "common/vectors.h"
#include "numerics/gemm/small_product.h"
#include "numerics/permuted_copy.h"

namespace poptorch_emu::attention_by_heads {
namespace {

using at::Tensor;

// Maximum number of scores at a time: 128 KiB, a quarter of the smallest second-level cache of a
// core with these vectors, which also holds keys and values. Assumed, not tuned.
constexpr int64_t kMostScores = int64_t{1} << 15;

// The numbers of each head: dense rows of queries, keys or values.
struct Heads {
  float* values;
  int64_t batch_stride, head_stride, row_stride, per_batch;

  explicit Heads(const Tensor& x)
      : values(const_cast<float*>(x.const_data_ptr<float>())),
        batch_stride(x.stride(0)),
        head_stride(x.stride(1)),
        row_stride(x.stride(2)),
        per_batch(x.size(1)) {}
  float* operator[](int64_t head) const {
    return values + head / per_batch * batch_stride + head % per_batch * head_stride;
  }
};

// Returns the scaled keys as (batch, heads, depth, keys), the right matrix of a product. The memory
// is padded, because the product reads whole lines.
Tensor transposed(const Tensor& key, double scale) {
  constexpr int64_t kBeyond = 16;
  const Tensor turned = key.transpose(2, 3);
  const Tensor memory = at::empty({key.numel() + kBeyond}, key.options());
  memory.narrow(0, key.numel(), kBeyond).zero_();
  Tensor keys = memory.narrow(0, 0, key.numel()).view(turned.sizes());
  if (!copy_by_tiles(turned, keys.mutable_data_ptr())) keys.copy_(turned);
  return keys.mul_(scale);
}

void check(const Tensor& query, const Tensor& key, const Tensor& value) {
  const auto is_single = [](const Tensor& x) {
    return x.dim() == 4 && x.scalar_type() == at::kFloat && x.numel() > 0;
  };
  const bool has_types = is_single(query) && is_single(key) && is_single(value);
  TORCH_CHECK_VALUE(has_types && key.sizes() == value.sizes() &&
                        query.sizes().slice(0, 2) == key.sizes().slice(0, 2) &&
                        query.size(3) == key.size(3) && query.size(3) % 16 == 0,
                    "attention_by_heads got ", query.sizes(), ", ", key.sizes(), " and ",
                    value.sizes(), "; expected queries, keys and values of float32 (batch, heads, ",
                    "length, depth), of a depth that 16 divides.");
  TORCH_CHECK(vectors::width() > 0, "attention_by_heads needs a processor with AVX2.");
}

// Computes `scaled_dot_product_attention` without a mask. No bit depends on the number of threads,
// or on how many heads or queries are computed at a time.
Tensor attention_by_heads(const Tensor& query, const Tensor& key, const Tensor& value,
                          double scale) {
  check(query, key, value);
  const int64_t num_heads = query.size(0) * query.size(1), depth = query.size(3);
  const int64_t num_queries = query.size(2), num_keys = key.size(2);
  const Tensor dense_query = with_dense_rows(query), dense_value = with_dense_rows(value);
  const Tensor result = at::empty_like(dense_query);
  const Tensor turned_key = transposed(key, scale);
  const Heads queries(dense_query), keys(turned_key), values(dense_value), results(result);

  const int64_t most_queries = std::clamp<int64_t>(kMostScores / num_keys, 1, num_queries);
  const int64_t most_heads =
      std::clamp<int64_t>(kMostScores / (most_queries * num_keys), 1, num_heads);
  constexpr int64_t kFewestMultiplications = int64_t{1} << 19;
  const int64_t grain = kFewestMultiplications / (num_queries * num_keys * depth) + 1;
  share_out(num_heads, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> memory(most_heads * most_queries * num_keys);
    for (int64_t first = begin; first < end; first += most_heads) {
      const int64_t last = std::min(first + most_heads, end);
      for (int64_t row = 0; row < num_queries; row += most_queries) {
        const int64_t num_rows = std::min(most_queries, num_queries - row);
        const auto scores_of = [&](int64_t head) {
          return memory.data() + (head - first) * num_rows * num_keys;
        };
        for (int64_t head = first; head < last; ++head) {
          small::multiply(depth, {queries[head] + row * queries.row_stride, queries.row_stride, 1},
                          num_rows, {keys[head], num_keys}, num_keys,
                          {scores_of(head), num_keys, /*adds=*/false});
        }
        Tensor scores =
            at::from_blob(memory.data(), {(last - first) * num_rows, num_keys}, query.options());
        at::_softmax_out(scores, scores, /*dim=*/1, /*half_to_float=*/false);
        for (int64_t head = first; head < last; ++head) {
          small::multiply(num_keys, {scores_of(head), num_keys, 1}, num_rows,
                          {values[head], values.row_stride}, depth,
                          {results[head] + row * results.row_stride, results.row_stride,
                           /*adds=*/false});
        }
      }
    }
  });
  return result;
}

}  // namespace
}  // namespace poptorch_emu::attention_by_heads

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("attention_by_heads(Tensor query, Tensor key, Tensor value, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) {
  m.impl("attention_by_heads", poptorch_emu::attention_by_heads::attention_by_heads);
}
