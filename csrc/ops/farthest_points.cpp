// Farthest point sampling: each chosen point is the one farthest from all points chosen before.

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace poptorch_emu {
namespace {

double squared_distance(const double* a, const double* b, int64_t num_dims) {
  double sum = 0;
  for (int64_t d = 0; d < num_dims; ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
  return sum;
}

// Throws unless each cloud lies within the points and has as many as are sampled from it.
void check_clouds(int64_t num_points, const at::Tensor& start, at::IntArrayRef ptr,
                  at::IntArrayRef counts) {
  TORCH_CHECK_VALUE(
      ptr.size() == counts.size() + 1 && start.numel() == static_cast<int64_t>(counts.size()),
      "farthest_points is given ", ptr.size(), " positions, ", counts.size(), " counts and ",
      start.numel(),
      " starts; each cloud has one count and one start, and there is one more "
      "position than clouds.");
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t first = start.const_data_ptr<int64_t>()[i];
    const int64_t size = ptr[i + 1] - ptr[i];
    TORCH_CHECK_VALUE(0 <= ptr[i] && ptr[i] < ptr[i + 1] && ptr[i + 1] <= num_points,
                      "farthest_points: cloud ", i, " is [", ptr[i], ", ", ptr[i + 1], ") of ",
                      num_points, " points; expected ascending positions from 0 to ", num_points,
                      ".");
    TORCH_CHECK_VALUE(0 <= counts[i] && counts[i] <= size && 0 <= first && first < size,
                      "farthest_points: ", counts[i], " points of cloud ", i, " are to be taken, ",
                      "beginning with its ", first, "; it has ", size, ", counted from 0.");
  }
}

// Samples `counts[i]` of the points [ptr[i], ptr[i + 1]), starting with index `start[i]` within
// them. Among equally far points the first is chosen. Returns indices into all of `src`.
at::Tensor farthest_points(const at::Tensor& src, const at::Tensor& start, at::IntArrayRef ptr,
                           at::IntArrayRef counts) {
  TORCH_CHECK_VALUE(src.dim() > 0, "farthest_points takes rows of points, not one number.");
  const int64_t num_points = src.size(0);
  const at::Tensor first = start.to(at::kLong).contiguous();
  check_clouds(num_points, first, ptr, counts);
  const at::Tensor points = src.reshape({num_points, -1}).to(at::kDouble).contiguous();
  const int64_t num_dims = points.size(1);
  const double* data = points.const_data_ptr<double>();
  const at::Tensor result = at::empty({c10::sum_integers(counts)}, at::TensorOptions(at::kLong));
  int64_t* out = result.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t begin = ptr[i];
    std::vector<double> distance(ptr[i + 1] - begin, std::numeric_limits<double>::infinity());
    int64_t chosen = first.const_data_ptr<int64_t>()[i];
    for (int64_t k = 0; k < counts[i]; ++k) {
      *out++ = begin + chosen;
      for (size_t p = 0; p < distance.size(); ++p) {
        const double* point = data + (begin + static_cast<int64_t>(p)) * num_dims;
        distance[p] = std::min(
            distance[p], squared_distance(point, data + (begin + chosen) * num_dims, num_dims));
      }
      chosen = std::max_element(distance.begin(), distance.end()) - distance.begin();
    }
  }
  return result;
}

at::Tensor farthest_points_meta(const at::Tensor& src, const at::Tensor&, at::IntArrayRef,
                                at::IntArrayRef counts) {
  return at::empty({c10::sum_integers(counts)}, src.options().dtype(at::kLong));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("farthest_points(Tensor src, Tensor start, int[] ptr, int[] counts) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("farthest_points", farthest_points); }
TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) { m.impl("farthest_points", farthest_points_meta); }

}  // namespace poptorch_emu
