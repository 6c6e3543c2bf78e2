#include "runtime/scheduling/early_windows.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <variant>

#include "runtime/memory/variable_views.h"

namespace poptorch_emu {
namespace {

// Operators that compute a result of any values they are given, by the shapes that they were
// compiled for. An index, a label or a matrix to invert may be wrong, so what takes those is not
// among them.
constexpr std::array<std::string_view, 54> kNeverFail = {
    "aten::_log_softmax",
    "aten::_log_softmax_backward_data",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_softmax",
    "aten::_softmax_backward_data",
    "aten::_to_copy",
    "aten::add",
    "aten::addmm",
    "aten::avg_pool2d",
    "aten::avg_pool2d_backward",
    "aten::bmm",
    "aten::cat",
    "aten::clone",
    "aten::convolution",
    "aten::convolution_backward",
    "aten::div",
    "aten::exp",
    "aten::expand",
    "aten::full_like",
    "aten::gelu",
    "aten::gelu_backward",
    "aten::max_pool2d_with_indices_backward",
    "aten::mean",
    "aten::mm",
    "aten::mse_loss",
    "aten::mse_loss_backward",
    "aten::mul",
    "aten::native_batch_norm_backward",
    "aten::native_layer_norm",
    "aten::native_layer_norm_backward",
    "aten::neg",
    "aten::permute",
    "aten::relu",
    "aten::rsqrt",
    "aten::select",
    "aten::select_backward",
    "aten::sigmoid",
    "aten::sigmoid_backward",
    "aten::slice",
    "aten::slice_backward",
    "aten::sqrt",
    "aten::squeeze",
    "aten::sub",
    "aten::sum",
    "aten::t",
    "aten::tanh",
    "aten::tanh_backward",
    "aten::threshold_backward",
    "aten::transpose",
    "aten::unsqueeze",
    "aten::where",
    "aten::zeros_like",
    "mkldnn::_linear_pointwise",
};
constexpr std::array<std::string_view, 15> kOursThatNeverFail = {
    "poptorch_emu::add_product",
    "poptorch_emu::channels_last",
    "poptorch_emu::clone",
    "poptorch_emu::column_sums",
    "poptorch_emu::contiguous",
    "poptorch_emu::gradient_product",
    "poptorch_emu::joined_gradients",
    "poptorch_emu::image_batch_norm_backward",
    "poptorch_emu::image_convolution_backward",
    "poptorch_emu::image_max_pool",
    "poptorch_emu::image_max_pool_with_indices",
    "poptorch_emu::packed_linear",
    "poptorch_emu::product",
    "poptorch_emu::reshape",
    "poptorch_emu::rnn_layer_backward",
};

bool never_fails(const Instruction& instruction) {
  const std::string_view name = instruction.op.schema().name();
  // A division that rounds, which fails for integers where the divisor is 0.
  const bool rounds = instruction.op.schema().overload_name().ends_with("_mode");
  const auto has = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return instruction.bodies.empty() && !rounds && (has(kNeverFail) || has(kOursThatNeverFail));
}

// What fills a register of a segment, if that is a load of this kind.
template <class Source>
const Source* loaded(const Segment& segment, RegisterId id) {
  for (const Load& load : segment.loads) {
    if (load.target.value == id.value) return std::get_if<Source>(&load.source);
  }
  return nullptr;
}

bool looks_up_rows(const Instruction& instruction) {
  const std::string& name = instruction.op.schema().name();
  return name == "aten::embedding" || name == "poptorch_emu::embedding";
}

// Inputs whose values have been looked up as numbers of rows once a micro-batch has left all
// segments that may fail; each with the number of rows that there were.
std::map<InputId, int64_t> checked_row_numbers(const Program& program) {
  std::map<InputId, int64_t> checked;
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::kMicroBatch) continue;
    for (const Instruction& instruction : segment.instructions) {
      const std::vector<Slot>& slots = instruction.slots;
      if (!looks_up_rows(instruction) || slots.size() < 2) continue;
      const auto* table = loaded<LoadVariable>(segment, slots[0].source);
      const auto* numbers = loaded<LoadInput>(segment, slots[1].source);
      if (table == nullptr || numbers == nullptr || table->is_shard) continue;
      const int64_t num_rows = program.variables[table->variable.value].shape.at(0);
      const auto [known, is_new] = checked.emplace(numbers->input, num_rows);
      if (!is_new) known->second = std::min(known->second, num_rows);
    }
  }
  return checked;
}

// Adding rows to a sum looks at their numbers, and an output may be taken by the user's code.
bool never_fails(const Segment& segment, const std::map<InputId, int64_t>& checked_numbers) {
  const auto is_sum = [&](const Store& store) {
    if (const auto* rows = std::get_if<AccumulateRows>(&store.target)) {
      const auto* numbers = loaded<LoadInput>(segment, rows->indices);
      const auto found =
          numbers == nullptr ? checked_numbers.end() : checked_numbers.find(numbers->input);
      return found != checked_numbers.end() && found->second <= rows->num_rows;
    }
    return std::holds_alternative<Accumulate>(store.target);
  };
  return std::all_of(segment.instructions.begin(), segment.instructions.end(),
                     [](const Instruction& each) { return never_fails(each); }) &&
         std::all_of(segment.stores.begin(), segment.stores.end(), is_sum) &&
         !segment.is_collective && !segment.is_seen_outside;
}

// What lives on and is read, written or added to by a segment.
struct Uses {
  std::set<VariableId> variables;
  std::set<AccumulatorId> sums;

  explicit Uses(const Segment& segment) {
    for (const Load& load : segment.loads) {
      std::visit([this](const auto& source) { note(source); }, load.source);
    }
    for (const Store& store : segment.stores) {
      std::visit([this](const auto& target) { note(target); }, store.target);
    }
    for (const Instruction& instruction : segment.instructions) {
      if (instruction.control == Control::kAddProduct) sums.insert(sum_of(instruction));
    }
    sums.insert(segment.reductions.begin(), segment.reductions.end());
  }

  template <class Place>
  void note(const Place& place) {
    if constexpr (requires { place.variable; }) variables.insert(place.variable);
    if constexpr (requires { place.accumulator; }) sums.insert(place.accumulator);
  }

  bool meet(const Uses& other) const {
    return have_common(variables, other.variables) || have_common(sums, other.sums);
  }

  template <class Id>
  static bool have_common(const std::set<Id>& one, const std::set<Id>& other) {
    return std::any_of(one.begin(), one.end(), [&](Id id) { return other.count(id) > 0; });
  }
};

}  // namespace

EarlyWindows::EarlyWindows(const Program& program)
    : needs_(program.segments.size()),
      is_window_(program.segments.size()),
      num_left_(program.segments.size()) {
  const std::map<InputId, int64_t> checked_numbers = checked_row_numbers(program);
  const std::vector<std::set<VariableId>> in_reach = variables_in_reach(program);
  std::vector<Uses> uses;
  for (size_t id = 0; id < needs_.size(); ++id) {
    uses.emplace_back(program.segments[id])
        .variables.insert(in_reach[id].begin(), in_reach[id].end());
  }
  for (size_t window = 0; window < needs_.size(); ++window) {
    const Segment& segment = program.segments[window];
    if (segment.kind != SegmentKind::kWindow) continue;
    is_window_[window] = true;
    const bool waits_for_all = segment.has_exchanges() || program.numerics.checks_floating_point;
    for (size_t id = 0; id < needs_.size(); ++id) {
      const Segment& other = program.segments[id];
      if (other.kind != SegmentKind::kMicroBatch) continue;
      if (waits_for_all || !never_fails(other, checked_numbers) || uses[window].meet(uses[id])) {
        needs_[window].push_back({static_cast<int64_t>(id)});
      } else {
        are_any_ = true;
      }
    }
  }
}

void EarlyWindows::begin_window() {
  have_begun_ = false;
  std::fill(num_left_.begin(), num_left_.end(), 0);
}

bool EarlyWindows::may_begin(SegmentId window) const {
  const std::vector<SegmentId>& needs = needs_[window.value];
  return is_planned_ && std::all_of(needs.begin(), needs.end(),
                                    [this](SegmentId id) { return num_left_[id.value] == 0; });
}

}  // namespace poptorch_emu
