#include "numerics/gemm/packed_weight.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "common/floating_point_modes.h"
#include "numerics/gemm/panel_product.h"
#include "numerics/gemm/product.h"
#include "numerics/gemm/small_product.h"
#include "numerics/permuted_copy.h"

// MKL's interface, which is missing in PyTorch builds for other processors.
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

// Numbers of BLAS enumerations, which MKL's functions expect.
constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112, kPacked = 151, kRight = 162;

// Packs a weight for small products. A loop handles few outputs that fill no cache line, because
// PyTorch's two views and a copy would take longer.
void pack_lines(const at::Tensor& weight, at::Tensor& packed) {
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

void pack_panels(const at::Tensor& weight, at::Tensor& packed) {
  const packing::Panels panels = panels::panels_of(weight.size(0));
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

int narrow(int64_t size) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  TORCH_CHECK_VALUE(size <= kMost, "A weight that MKL packs is for matrices of at most ", kMost,
                    " rows and columns, but got ", size, ".");
  return static_cast<int>(size);
}

// A row-major matrix for MKL, whose rows do not overlap.
class Matrix {
 public:
  explicit Matrix(const at::Tensor& matrix) : dense_(with_dense_rows(matrix)) {
    if (rows() > 1 && dense_.stride(0) < columns()) dense_ = dense_.contiguous();
  }

  int rows() const { return narrow(dense_.size(0)); }
  int columns() const { return narrow(dense_.size(1)); }
  // The stride of a single row is arbitrary, so the number of columns replaces it.
  int stride() const { return rows() > 1 ? narrow(dense_.stride(0)) : columns(); }
  const float* values() const { return dense_.const_data_ptr<float>(); }

 private:
  at::Tensor dense_;
};

void check_library() {
  TORCH_CHECK_VALUE(cblas_sgemm_pack_get_size != nullptr && cblas_sgemm_pack != nullptr &&
                        cblas_sgemm_compute != nullptr,
                    "The kernel 'library' packs its weight with MKL, but this PyTorch was built ",
                    "without MKL. Compile the model again on this computer.");
}

void pack_for_library(const at::Tensor& weight, int64_t rows, at::Tensor& packed) {
  const Matrix matrix(weight);
  // MKL multiplies by the factor, which must not flush denormal numbers to zero.
  const FloatingPointModes exact(default_floating_point_modes());
  cblas_sgemm_pack(kRowMajor, kRight, kTransposed, narrow(rows), matrix.rows(), matrix.columns(),
                   /*factor=*/1.0f, matrix.values(), matrix.stride(),
                   packed.mutable_data_ptr<float>());
}

// Returns whether the shape of a packed weight matches these sizes and the kernel.
bool is_packed(const at::Tensor& packed, int64_t num_outputs, int64_t num_inputs,
               ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::kSmall:
      return packed.dim() == 2 && packed.size(0) == num_inputs &&
             packed.size(1) == whole_lines(num_outputs);
    case ProductKernel::kPanels: {
      const packing::Panels panels = panels::panels_of(num_outputs);
      return packed.sizes() == at::IntArrayRef({panels.count(), num_inputs, panels.width});
    }
    case ProductKernel::kLibrary:
      return packed.dim() == 1;
  }
  return false;
}

// Returns zeroed memory for a packed weight; kernels do not write the padding.
at::Tensor empty_packed(const at::Tensor& weight, ProductKernel kernel, int64_t rows) {
  const int64_t num_outputs = weight.size(0), num_inputs = weight.size(1);
  const auto options = weight.options().dtype(at::kFloat);
  switch (kernel) {
    case ProductKernel::kSmall:
      return at::zeros({num_inputs, whole_lines(num_outputs)}, options);
    case ProductKernel::kPanels: {
      const packing::Panels panels = panels::panels_of(num_outputs);
      return at::zeros({panels.count(), num_inputs, panels.width}, options);
    }
    case ProductKernel::kLibrary:
      break;
  }
  check_library();
  const size_t num_bytes =
      cblas_sgemm_pack_get_size(kRight, narrow(rows), narrow(num_outputs), narrow(num_inputs));
  return at::empty({static_cast<int64_t>(num_bytes / sizeof(float) + 1)}, options);
}

void multiply_lines(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& bias,
                    at::Tensor& result) {
  if (bias.defined()) fill_rows(bias, result);
  multiply_small(x, packed, /*adds=*/bias.defined(), result);
}

void multiply_panels(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& bias,
                     at::Tensor& result) {
  const at::Tensor rows = with_dense_rows(x);
  const float* const start = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  panels::multiply({rows.const_data_ptr<float>(), rows.stride(0), /*is_transposed=*/false},
                   x.size(0), {packed.const_data_ptr<float>(), 0, /*is_packed=*/true},
                   result.size(1), x.size(1),
                   {result.mutable_data_ptr<float>(), result.size(1), start, 0}, nullptr);
}

void multiply_by_library(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& bias,
                         at::Tensor& result) {
  check_library();
  const Matrix rows(x);
  const int num_outputs = narrow(result.size(1));
  if (bias.defined()) result.copy_(bias);
  cblas_sgemm_compute(kRowMajor, kAsIs, kPacked, rows.rows(), num_outputs, rows.columns(),
                      rows.values(), rows.stride(), packed.const_data_ptr<float>(), rows.columns(),
                      bias.defined() ? 1.0f : 0.0f, result.mutable_data_ptr<float>(), num_outputs);
}

}  // namespace

at::Tensor pack_weight(const at::Tensor& weight, ProductKernel kernel, int64_t rows) {
  const bool is_float = weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kHalf;
  TORCH_CHECK_VALUE(weight.dim() == 2 && is_float && weight.numel() > 0 && rows > 0,
                    "pack_weight got a weight of shape ", weight.sizes(), " and type ",
                    weight.scalar_type(), " for ", rows,
                    " rows; expected numbers of float32 or float16 (outputs, inputs).");
  at::Tensor packed = empty_packed(weight, kernel, rows);
  pack_weight_again(weight, kernel, rows, packed);
  return packed;
}

void pack_weight_again(const at::Tensor& given, ProductKernel kernel, int64_t rows,
                       at::Tensor& packed) {
  const at::Tensor weight = given.to(at::kFloat);
  TORCH_INTERNAL_ASSERT(packed.is_contiguous() &&
                        is_packed(packed, weight.size(0), weight.size(1), kernel));
  switch (kernel) {
    case ProductKernel::kSmall:
      return pack_lines(weight, packed);
    case ProductKernel::kPanels:
      return pack_panels(weight, packed);
    case ProductKernel::kLibrary:
      return pack_for_library(weight, rows, packed);
  }
}

at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& packed,
                         const std::optional<at::Tensor>& bias, int64_t num_outputs,
                         ProductKernel kernel) {
  TORCH_CHECK_VALUE(x.dim() == 2 && x.scalar_type() == at::kFloat, "packed_linear got x of shape ",
                    x.sizes(), " and type ", x.scalar_type(), "; expected float32 (rows, inputs).");
  TORCH_CHECK_VALUE(is_packed(packed, num_outputs, x.size(1), kernel),
                    "packed_linear got a weight of shape ", packed.sizes(), "; that of ",
                    num_outputs, " outputs for rows of ", x.size(1),
                    " numbers is made by pack_weight for the kernel '", name_of(kernel), "'.");
  TORCH_CHECK_VALUE(!bias.has_value() || bias->sizes() == at::IntArrayRef({num_outputs}),
                    "packed_linear got a bias of shape ", bias->sizes(), "; expected [",
                    num_outputs, "].");
  const at::Tensor row = bias.has_value() ? bias->resolve_neg().contiguous() : at::Tensor();
  at::Tensor result = at::empty({x.size(0), num_outputs}, x.options());
  switch (kernel) {
    case ProductKernel::kSmall:
      multiply_lines(x, packed, row, result);
      break;
    case ProductKernel::kPanels:
      multiply_panels(x, packed, row, result);
      break;
    case ProductKernel::kLibrary:
      multiply_by_library(x, packed, row, result);
      break;
  }
  return result;
}

}  // namespace poptorch_emu
