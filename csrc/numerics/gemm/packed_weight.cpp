#include "numerics/gemm/packed_weight.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "common/floating_point_modes.h"
#include "common/vectors.h"
#include "numerics/gemm/panel_product.h"
#include "numerics/gemm/small_product.h"
#include "numerics/permuted_copy.h"

// The interface of the library, which a PyTorch for other processors is built without.
extern "C" {
#define POPTORCH_EMU_OPTIONAL __attribute__((weak, visibility("default")))
POPTORCH_EMU_OPTIONAL size_t cblas_sgemm_pack_get_size(int side, int m, int n, int k);
POPTORCH_EMU_OPTIONAL void cblas_sgemm_pack(int order, int side, int transposes, int m, int n,
                                            int k, float factor, const float* from, int stride,
                                            float* to);
POPTORCH_EMU_OPTIONAL void cblas_sgemm_compute(int order, int transposes_left, int transposes_right,
                                               int m, int n, int k, const float* left,
                                               int left_stride, const float* right,
                                               int right_stride, float beta, float* result,
                                               int result_stride);
#undef POPTORCH_EMU_OPTIONAL
}

namespace poptorch_emu {
namespace {

// Numbers that the interface of BLAS has for its choices.
constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112, kPacked = 151, kRight = 162;

// On AMD's processors the library writes a weight's transpose somewhere into a buffer that has up
// to 6 MB more (with AVX2), and multiplies by that as it does without packing. The transpose alone
// has 0.95 to 1.2 of the speed of that, with the same bits; over the weight as it is, 16 rows x
// 1024 x 1024 1.2, 64 x 5000 x 512 1.08, 512 x 1024 x 256 1.02.
bool can_pack() {
  static const bool is_amd = POPTORCH_EMU_IS_AMD;
  return !is_amd && cblas_sgemm_pack_get_size != nullptr && cblas_sgemm_pack != nullptr &&
         cblas_sgemm_compute != nullptr;
}

// What the library has packed is a row of numbers, and what our kernel reads are panels.
bool is_of_library(const at::Tensor& packed) { return packed.dim() == 1; }
bool has_panels(const at::Tensor& packed) { return packed.dim() == 3; }

// Of a small layer the packed weight is (inputs, whole lines of outputs). What fills the lines up
// stays what it is. Two views and a copy by PyTorch take 3 us longer for 8 outputs of 64 inputs.
void pack_transposed(const at::Tensor& weight, at::Tensor& packed) {
  auto* to = packed.mutable_data_ptr<float>();
  const bool is_whole = packed.size(1) == weight.size(0);
  if (is_whole && copy_by_tiles(weight.t(), to)) return;
  const at::Tensor plain = weight.resolve_neg();
  const auto* const from = plain.const_data_ptr<float>();
  for (int64_t input = 0; input < weight.size(1); ++input, to += packed.size(1)) {
    for (int64_t output = 0; output < weight.size(0); ++output) {
      to[output] = from[output * plain.stride(0) + input * plain.stride(1)];
    }
  }
}

bool is_weight(const at::Tensor& weight) {
  const bool is_float = weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kHalf;
  return weight.dim() == 2 && is_float;
}

void check_bias(const std::optional<at::Tensor>& bias, int64_t num_outputs) {
  TORCH_CHECK_VALUE(!bias.has_value() || bias->sizes() == at::IntArrayRef({num_outputs}),
                    "packed_linear got a bias of shape ", bias->sizes(), "; expected [",
                    num_outputs, "].");
}

at::Tensor small_linear(const at::Tensor& x, const at::Tensor& packed,
                        const std::optional<at::Tensor>& bias, int64_t num_outputs) {
  TORCH_CHECK_VALUE(packed.sizes() == at::IntArrayRef({x.size(1), whole_lines(num_outputs)}),
                    "packed_linear got a weight of shape ", packed.sizes(), "; that of ",
                    num_outputs, " outputs for ", x.size(0), " rows of ", x.size(1),
                    " numbers is made by pack_weight.");
  at::Tensor result = at::empty({x.size(0), num_outputs}, x.options());
  check_bias(bias, num_outputs);
  if (bias.has_value()) {
    const at::Tensor row = bias->resolve_neg().contiguous();
    float* to = result.mutable_data_ptr<float>();
    for (int64_t i = 0; i < x.size(0); ++i)
      to = std::copy_n(row.const_data_ptr<float>(), num_outputs, to);
  }
  multiply_small(x, packed, /*adds=*/bias.has_value(), result);
  return result;
}

// What fills the panels up stays what it is.
void pack_panels(const at::Tensor& weight, at::Tensor& packed) {
  const packing::Panels panels = panels::panels_of(weight.size(0));
  TORCH_INTERNAL_ASSERT(packed.is_contiguous() &&
                        packed.sizes() ==
                            at::IntArrayRef({panels.count(), weight.size(1), panels.width}));
  const int64_t num_whole = std::max<int64_t>(panels.count() - 2, 0);
  const at::Tensor whole = weight.narrow(0, 0, num_whole * panels.width)
                               .unflatten(0, {num_whole, panels.width})
                               .transpose(1, 2);
  if (!copy_by_tiles(whole, packed.mutable_data_ptr())) packed.narrow(0, 0, num_whole).copy_(whole);
  for (int64_t panel = num_whole; panel < panels.count(); ++panel) {
    const int64_t first = panels.first(panel), width = panels.width_of(panel);
    packed.select(0, panel).narrow(1, 0, width).copy_(weight.narrow(0, first, width).t());
  }
}

at::Tensor linear_of_panels(const at::Tensor& x, const at::Tensor& packed,
                            const std::optional<at::Tensor>& bias, int64_t num_outputs) {
  const packing::Panels panels = panels::panels_of(num_outputs);
  TORCH_CHECK_VALUE(vectors::width() > 0,
                    "packed_linear got a weight in panels; this processor has no AVX2 to multiply "
                    "by it. Pack the weight here, by pack_weight.");
  TORCH_CHECK_VALUE(
      packed.is_contiguous() &&
          packed.sizes() == at::IntArrayRef({panels.count(), x.size(1), panels.width}),
      "packed_linear got a weight of shape ", packed.sizes(), "; that of ", num_outputs,
      " outputs for rows of ", x.size(1), " numbers is made by pack_weight.");
  check_bias(bias, num_outputs);
  const at::Tensor rows = with_dense_rows(x);
  const at::Tensor start = bias.has_value() ? bias->resolve_neg().contiguous() : at::Tensor();
  at::Tensor result = at::empty({x.size(0), num_outputs}, x.options());
  panels::multiply({rows.const_data_ptr<float>(), rows.stride(0), /*is_transposed=*/false},
                   x.size(0), {packed.const_data_ptr<float>(), 0, /*is_packed=*/true}, num_outputs,
                   x.size(1),
                   {result.mutable_data_ptr<float>(), num_outputs,
                    start.defined() ? start.const_data_ptr<float>() : nullptr, 0},
                   nullptr);
  return result;
}

constexpr int64_t kMostRows = std::numeric_limits<int>::max();

int narrow(int64_t size) {
  TORCH_CHECK_VALUE(size <= kMostRows, "A packed weight is for matrices of at most ", kMostRows,
                    " rows and columns, but got ", size, ".");
  return static_cast<int>(size);
}

// A row-major matrix as the library takes it, whose rows do not overlap.
class Matrix {
 public:
  explicit Matrix(const at::Tensor& matrix) : dense_(with_dense_rows(matrix)) {
    if (rows() > 1 && dense_.stride(0) < columns()) dense_ = dense_.contiguous();
  }

  int rows() const { return narrow(dense_.size(0)); }
  int columns() const { return narrow(dense_.size(1)); }
  // The stride of a single row may be anything.
  int stride() const { return rows() > 1 ? narrow(dense_.stride(0)) : columns(); }
  const float* values() const { return dense_.const_data_ptr<float>(); }

 private:
  at::Tensor dense_;
};

}  // namespace

bool is_small_layer(int64_t rows, int64_t num_inputs, int64_t num_outputs) {
  return !panels::is_faster(rows, num_inputs, num_outputs) &&
         is_small_product(rows, num_inputs, whole_lines(num_outputs));
}

at::Tensor pack_weight(const at::Tensor& given, int64_t rows) {
  TORCH_CHECK_VALUE(is_weight(given), "pack_weight got a weight of shape ", given.sizes(),
                    " and type ", given.scalar_type(),
                    "; expected float32 or float16 (outputs, inputs).");
  const at::Tensor weight = given.to(at::kFloat);
  TORCH_CHECK_VALUE(0 < rows && rows <= kMostRows, "pack_weight packs for 1 to ", kMostRows,
                    " rows, but got ", rows, ".");
  if (is_small_layer(rows, weight.size(1), weight.size(0))) {
    at::Tensor packed = at::zeros({weight.size(1), whole_lines(weight.size(0))}, weight.options());
    pack_transposed(weight, packed);
    return packed;
  }
  if (panels::is_faster(rows, weight.size(1), weight.size(0))) {
    const packing::Panels panels = panels::panels_of(weight.size(0));
    at::Tensor packed = at::zeros({panels.count(), weight.size(1), panels.width}, weight.options());
    pack_panels(weight, packed);
    return packed;
  }
  if (!can_pack() || weight.numel() == 0) return weight.t().clone(at::MemoryFormat::Contiguous);
  const size_t num_bytes = cblas_sgemm_pack_get_size(kRight, narrow(rows), narrow(weight.size(0)),
                                                     narrow(weight.size(1)));
  at::Tensor packed =
      at::empty({static_cast<int64_t>(num_bytes / sizeof(float) + 1)}, weight.options());
  pack_weight_again(weight, rows, packed);
  return packed;
}

void pack_weight_again(const at::Tensor& given, int64_t rows, at::Tensor& packed) {
  const at::Tensor weight = given.to(at::kFloat);
  if (is_small_layer(rows, weight.size(1), weight.size(0))) {
    pack_transposed(weight, packed);
    return;
  }
  if (has_panels(packed)) {
    pack_panels(weight, packed);
    return;
  }
  if (!is_of_library(packed)) {
    packed.copy_(weight.t());
    return;
  }
  const Matrix matrix(weight);
  // The library multiplies by the factor; denormal numbers stay what they are all the same.
  const FloatingPointModes exact(default_floating_point_modes());
  cblas_sgemm_pack(kRowMajor, kRight, kTransposed, narrow(rows), matrix.rows(), matrix.columns(),
                   /*factor=*/1.0f, matrix.values(), matrix.stride(),
                   packed.mutable_data_ptr<float>());
}

at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& packed,
                         const std::optional<at::Tensor>& bias, int64_t num_outputs) {
  TORCH_CHECK_VALUE(x.dim() == 2 && x.scalar_type() == at::kFloat, "packed_linear got x of shape ",
                    x.sizes(), " and type ", x.scalar_type(), "; expected float32 (rows, inputs).");
  if (is_small_layer(x.size(0), x.size(1), num_outputs))
    return small_linear(x, packed, bias, num_outputs);
  if (has_panels(packed)) return linear_of_panels(x, packed, bias, num_outputs);
  if (!is_of_library(packed)) return at::linear(x, packed.t(), bias);
  const Matrix rows(x);
  at::Tensor result = at::empty({x.size(0), num_outputs}, x.options());
  if (bias.has_value()) result.copy_(*bias);
  cblas_sgemm_compute(kRowMajor, kAsIs, kPacked, rows.rows(), narrow(num_outputs), rows.columns(),
                      rows.values(), rows.stride(), packed.const_data_ptr<float>(), rows.columns(),
                      bias.has_value() ? 1.0f : 0.0f, result.mutable_data_ptr<float>(),
                      narrow(num_outputs));
  return result;
}

}  // namespace poptorch_emu
