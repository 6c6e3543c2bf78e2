#include "runtime/gradients/replica_sum.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "numerics/gemm/column_sums.h"
#include "runtime/executor/floating_point.h"
#include "runtime/gradients/half_sum.h"
#include "runtime/memory/engine_memory.h"

namespace poptorch_emu {
namespace {

// Up to this number of elements a loop is faster than PyTorch's addition (assumed).
constexpr int64_t kFewNumbers = 1024;

bool are_few_floats(const at::Tensor& sum, const at::Tensor& value) {
  return sum.numel() <= kFewNumbers && sum.scalar_type() == at::kFloat &&
         value.scalar_type() == at::kFloat && sum.sizes() == value.sizes() && sum.is_contiguous() &&
         value.is_contiguous() && !value.is_neg() && !sum.is_neg();
}

void add_few(float* sum, const float* value, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += value[i];
}

// Returns whether a product may be kept and added later, because its addition allocates nothing.
bool may_be_kept(const Product& product) {
  return product.kernel == ProductKernel::kSmall && product.right.stride(1) == 1;
}

bool is_unshared(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace

ReplicaSum::ReplicaSum(const Program& program, AccumulatorId id, bool is_alone, int64_t num_lanes,
                       RemoteTraffic& remote)
    : id_(id),
      accumulator_(program.accumulators[id.value]),
      numerics_(program.numerics),
      num_micro_batches_(program.runs_per_window()),
      takes_any_order_(program.adds_in_any_order(id)),
      is_alone_(is_alone),
      remote_(remote),
      views_(num_lanes) {
  rows_.expect(num_micro_batches_);
}

bool ReplicaSum::add(at::Tensor& value, int64_t index, const at::Tensor& rng) {
  // Parts are cut in row-major order, so replicas must agree on the order of the elements.
  if (!is_alone_ && !value.is_contiguous()) value = value.contiguous();
  // A value is converted here and not during its addition, which another thread may do, because a
  // memory plan requires the same allocations in each run. Adding float16 numbers allocates
  // nothing. The lazy negation is resolved, because PyTorch's copy of such a tensor ignores it.
  const bool is_half =
      takes_any_order_ && value.scalar_type() == at::kHalf && !accumulator_.is_running_mean;
  if (is_half) {
    value = value.resolve_neg().contiguous();
  } else if (takes_any_order_) {
    value = value.to(accumulator_.dtype);
  }
  const auto add_it = [&](at::Tensor& summand, const at::Tensor&, int64_t number) {
    if (number > 0) {
      add_next(summand, number, rng);
    } else if (is_half) {
      begin_in_kept_memory(summand.sizes()).copy_(summand);
    } else {
      add_next(std::move(summand), number, rng);  // A kept value is never first.
    }
  };
  return order_.add(index, value, {}, takes_any_order_, add_it);
}

bool ReplicaSum::add_rows(const AccumulateRows& store, at::Tensor& rows, const at::Tensor& indices,
                          int64_t index) {
  rows = RowSum::readable_rows(rows);
  if (takes_any_order_ && keeps_rows() && RowSum::fit(num_micro_batches_, rows, indices)) {
    rows_.add_any(index, rows, indices, store.num_rows, store.padding_index);
    return true;
  }
  const auto add_them = [&](const at::Tensor& summand, const at::Tensor& places, int64_t number) {
    add_next_rows(store, summand, places, number);
  };
  return order_.add(index, rows, RowSum::readable_indices(indices), takes_any_order_, add_them);
}

void ReplicaSum::add_next_rows(const AccumulateRows& store, const at::Tensor& rows,
                               const at::Tensor& indices, int64_t index) {
  rows_.add(rows, indices, store.num_rows, store.padding_index);
  if (keeps_rows()) {
    if (numerics_.checks_floating_point) check(rows_.values());
    return;
  }
  const bool is_new = !sum_.defined() || (accumulator_.is_remote && index == 0);
  at::Tensor sum = is_new
                       ? at::zeros({store.num_rows, rows.size(-1)}, at::TensorOptions(at::kFloat))
                   : accumulator_.is_remote ? remote_.load(sum_)
                                            : sum_;
  rows_.add_to(sum);
  rows_.clear();
  check(sum);
  sum_ = accumulator_.is_remote ? remote_.store(sum) : sum;
}

bool ReplicaSum::add_product(const Product& product, int64_t index, int64_t lane) {
  at::Tensor left = product.left;
  const auto add_it = [&](const at::Tensor& a, const at::Tensor& b, int64_t number) {
    at::Tensor* const row_sums = number == index ? product.row_sums : nullptr;
    add_next_product({a, b, product.kernel, row_sums}, number, lane);
  };
  const bool may_keep = takes_any_order_ && may_be_kept(product);
  if (!order_.add(index, left, product.right, may_keep, add_it)) return false;
  // A kept product is added later, but its row sums are needed now.
  if (product.row_sums != nullptr && !product.row_sums->defined()) {
    *product.row_sums = sum_columns(left.t());
  }
  return true;
}

void ReplicaSum::add_next_product(const Product& product, int64_t index, int64_t lane) {
  if (accumulator_.is_remote) {
    at::Tensor fetched = index == 0 ? product.empty_sum() : remote_.load(sum_);
    multiply(product, /*adds=*/index > 0, fetched);
    sum_ = remote_.store(fetched);
  } else {
    if (index == 0) begin_in_kept_memory({product.left.size(0), product.right.size(1)});
    multiply(product, /*adds=*/index > 0, view_for(lane));
  }
}

void ReplicaSum::add_next(at::Tensor value, int64_t index, const at::Tensor& rng) {
  if (!accumulator_.is_remote) {
    add_on_chip(sum_, std::move(value), index, rng);
    return;
  }
  at::Tensor sum = index == 0 || !sum_.defined() ? at::Tensor() : remote_.load(sum_);
  add_on_chip(sum, std::move(value), index, rng);
  sum_ = remote_.store(sum);
}

void ReplicaSum::add_on_chip(at::Tensor& sum, at::Tensor value, int64_t index,
                             const at::Tensor& rng) const {
  if (accumulator_.dtype == at::kHalf) {
    sum = add_in_half(sum, value, accumulator_, id_, index, numerics_, rng);
  } else if (index == 0 || !sum.defined()) {
    if (value.scalar_type() != accumulator_.dtype) {
      sum = value.to(accumulator_.dtype);
    } else if (is_unshared(value) && value.is_non_overlapping_and_dense()) {
      sum = std::move(value);
    } else {
      sum = value.clone();
    }
  } else if (accumulator_.is_running_mean) {
    const double n = static_cast<double>(index);
    sum.mul_(n / (n + 1.0)).add_(value.to(accumulator_.dtype), 1.0 / (n + 1.0));
  } else if (are_few_floats(sum, value)) {
    add_few(sum.mutable_data_ptr<float>(), value.const_data_ptr<float>(), sum.numel());
  } else if (!add_half(value, sum)) {
    sum.add_(value.to(accumulator_.dtype));
  }
  check(sum);
}

void ReplicaSum::check(const at::Tensor& sum) const {
  if (numerics_.checks_floating_point && !is_finite(sum)) {
    throw FloatingPointException("the accumulated gradient of '" + accumulator_.name +
                                 "' is not finite");
  }
}

// Begins a window's sum in the memory of the last window's sum.
at::Tensor& ReplicaSum::begin_in_kept_memory(at::IntArrayRef sizes) {
  sum_ = std::exchange(kept_memory_, at::Tensor());
  if (!sum_.defined() || sum_.sizes() != sizes) {
    // The sum outlives the window, so that its memory must not come from a memory plan.
    const SegmentMemory::Suspension outside;
    sum_ = at::empty(sizes, at::TensorOptions(at::kFloat));
  }
  keeps_memory_ = true;
  return sum_;
}

// Returns a lane's tensor in the memory of the sum, recreated if the sum has moved.
at::Tensor& ReplicaSum::view_for(int64_t lane) {
  if (lane == 0) return sum_;
  at::Tensor& view = views_[lane];
  if (!view.defined() || view.const_data_ptr() != sum_.const_data_ptr() ||
      view.sizes() != sum_.sizes() || view.strides() != sum_.strides()) {
    view = at::from_blob(sum_.mutable_data_ptr(), sum_.sizes(), sum_.strides(), sum_.options());
  }
  return view;
}

void ReplicaSum::clear() {
  rows_.clear();
  order_.clear();
  if (std::exchange(keeps_memory_, false) && is_unshared(sum_)) kept_memory_ = std::move(sum_);
  sum_.reset();
}

int64_t ReplicaSum::num_bytes() const {
  const int64_t bytes = sum_.defined() ? static_cast<int64_t>(sum_.nbytes()) : 0;
  return bytes + rows_.whole_bytes();
}

}  // namespace poptorch_emu
