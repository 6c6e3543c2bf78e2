// Decodes CTC outputs by prefix beam search.
//
// After each time step the `beam_width` most probable prefixes are kept. A prefix has two
// probabilities: that of all alignments ending in a blank, and that of those ending in its last
// label. Only alignments that end in a blank can append the same label again.

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

namespace poptorch_emu {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double log_sum(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kMinusInfinity ? a : a + std::log1p(std::exp(b - a));
}

using Prefix = std::vector<int32_t>;

struct Score {
  double ends_in_blank = kMinusInfinity;
  double ends_in_label = kMinusInfinity;
  double total() const { return log_sum(ends_in_blank, ends_in_label); }
};

using Beam = std::vector<std::pair<Prefix, Score>>;

void add(double& target, double value) { target = log_sum(target, value); }

// Returns the prefixes after one more step with the log-probabilities `labels`.
std::map<Prefix, Score> extend(const Beam& beam, const double* labels, int64_t num_labels,
                               int64_t blank) {
  std::map<Prefix, Score> next;
  for (const auto& [prefix, score] : beam) {
    Score& same = next[prefix];
    add(same.ends_in_blank, score.total() + labels[blank]);
    if (!prefix.empty()) add(same.ends_in_label, score.ends_in_label + labels[prefix.back()]);
    for (int64_t label = 0; label < num_labels; ++label) {
      if (label == blank) continue;
      const bool is_repeated = !prefix.empty() && prefix.back() == label;
      const double before = is_repeated ? score.ends_in_blank : score.total();
      if (before + labels[label] == kMinusInfinity) continue;
      Prefix longer = prefix;
      longer.push_back(static_cast<int32_t>(label));
      add(next[std::move(longer)].ends_in_label, before + labels[label]);
    }
  }
  return next;
}

// Returns the most probable prefixes, best first; equal ones are in lexicographic order.
Beam best(const std::map<Prefix, Score>& candidates, int64_t width) {
  Beam beam(candidates.begin(), candidates.end());
  std::stable_sort(beam.begin(), beam.end(), [](const auto& a, const auto& b) {
    return a.second.total() > b.second.total();
  });
  if (static_cast<int64_t>(beam.size()) > width) beam.resize(width);
  return beam;
}

struct Arguments {
  int64_t num_steps, num_sequences, num_labels;
  Arguments(const at::Tensor& probs, const at::Tensor& lengths, int64_t blank, int64_t beam_width,
            int64_t top_paths) {
    TORCH_CHECK_VALUE(probs.dim() == 3,
                      "Incorrect shape for first input to CTC beam search decoder. It is ",
                      probs.sizes(), "; expected (time, sequences, labels).");
    num_steps = probs.size(0);
    num_sequences = probs.size(1);
    num_labels = probs.size(2);
    TORCH_CHECK_VALUE(lengths.dim() == 1 && lengths.size(0) == num_sequences,
                      "CTC beam search decoder: lengths is ", lengths.sizes(),
                      "; expected one length for each of ", num_sequences, " sequences.");
    TORCH_CHECK_VALUE(blank >= 0 && blank < num_labels, "CTC beam search decoder: blank is ", blank,
                      "; expected one of ", num_labels, " labels.");
    TORCH_CHECK_VALUE(top_paths >= 1 && top_paths <= beam_width,
                      "CTC beam search decoder: top_paths is ", top_paths,
                      "; expected 1 to beam_width, which is ", beam_width, ".");
  }
};

using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Results decode(const at::Tensor& probs, const at::Tensor& lengths, int64_t blank,
               int64_t beam_width, int64_t top_paths) {
  const Arguments arguments(probs, lengths, blank, beam_width, top_paths);
  const auto [num_steps, num_sequences, num_labels] = arguments;
  const at::Tensor values = probs.to(at::kDouble).transpose(0, 1).contiguous();
  const at::Tensor steps = lengths.to(at::kLong).contiguous();
  const auto integers = at::TensorOptions(at::kInt);
  const at::Tensor scores =
      at::full({num_sequences, top_paths}, kMinusInfinity, at::TensorOptions(at::kFloat));
  const at::Tensor sizes = at::full({num_sequences, top_paths}, 0, integers);
  const at::Tensor paths = at::full({num_sequences, top_paths, num_steps}, blank, integers);
  for (int64_t n = 0; n < num_sequences; ++n) {
    const int64_t count = steps.const_data_ptr<int64_t>()[n];
    TORCH_CHECK_VALUE(count >= 0 && count <= num_steps, "CTC beam search decoder: sequence ", n,
                      " has length ", count, "; expected at most ", num_steps, " steps.");
    Beam beam = {{Prefix(), Score{0.0, kMinusInfinity}}};
    for (int64_t t = 0; t < count; ++t) {
      const double* labels = values.const_data_ptr<double>() + (n * num_steps + t) * num_labels;
      beam = best(extend(beam, labels, num_labels, blank), beam_width);
    }
    const int64_t num_found = std::min<int64_t>(top_paths, static_cast<int64_t>(beam.size()));
    for (int64_t k = 0; k < num_found; ++k) {
      const auto& [prefix, score] = beam[k];
      const int64_t row = n * top_paths + k;
      scores.mutable_data_ptr<float>()[row] = static_cast<float>(score.total());
      sizes.mutable_data_ptr<int32_t>()[row] = static_cast<int32_t>(prefix.size());
      std::copy(prefix.begin(), prefix.end(), paths.mutable_data_ptr<int32_t>() + row * num_steps);
    }
  }
  return {scores.to(probs.scalar_type()), sizes, paths};
}

Results decode_meta(const at::Tensor& probs, const at::Tensor& lengths, int64_t blank,
                    int64_t beam_width, int64_t top_paths) {
  const Arguments arguments(probs, lengths, blank, beam_width, top_paths);
  const int64_t n = arguments.num_sequences;
  const auto integers = probs.options().dtype(at::kInt);
  return {at::empty({n, top_paths}, probs.options()), at::empty({n, top_paths}, integers),
          at::empty({n, top_paths, arguments.num_steps}, integers)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "ctc_beam_search_decoder(Tensor probs, Tensor lengths, int blank, int beam_width, "
      "int top_paths) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("ctc_beam_search_decoder", decode); }
TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) { m.impl("ctc_beam_search_decoder", decode_meta); }

}  // namespace poptorch_emu
