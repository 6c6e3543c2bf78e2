// Prints a tensor while a program runs: one text on standard error for each execution.

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace poptorch_emu {
namespace {

// Notations of numbers, with PopTorch's values.
enum class FloatFormat { kAuto = 0, kFixed = 1, kScientific = 2, kNone = 3 };

struct PrintOptions {
  int64_t summarise_threshold;
  int64_t edge_items;
  int64_t max_line_width;
  int64_t digits;
  FloatFormat float_format;
  std::string separator;
  std::string open_bracket;
  std::string close_bracket;
};

template <typename... Args>
std::string formatted(const char* format, Args... args) {
  std::array<char, 512> buffer;
  const int length = std::snprintf(buffer.data(), buffer.size(), format, args...);
  return std::string(buffer.data(), std::min<size_t>(length, buffer.size() - 1));
}

// Extra indentation of a row's continuation lines.
constexpr size_t kContinuation = 2;

// Lays out one tensor: nested brackets, one line for each innermost row, wrapped long rows, and
// only both ends of long axes.
class TensorText {
 public:
  TensorText(const at::Tensor& tensor, const PrintOptions& options)
      : options_(options),
        sizes_(tensor.sizes().vec()),
        is_float_(tensor.is_floating_point()),
        is_summary_(tensor.numel() > options.summarise_threshold),
        floats_(is_float_ ? tensor.to(at::kDouble).contiguous() : at::Tensor()),
        integers_(is_float_ ? at::Tensor() : tensor.to(at::kLong).contiguous()) {
    choose_format();
    visit(0, 0, [this](int64_t index) { width_ = std::max(width_, element(index).size()); });
  }

  // Returns the text of the tensor, which starts at column `column` of its line.
  std::string text(size_t column) {
    column_ = column;
    if (sizes_.empty()) {
      write_element(0);
    } else {
      write_block(0, 0, 0);
    }
    return std::move(out_);
  }

 private:
  // Returns the positions shown on an axis; -1 stands for omitted positions.
  std::vector<int64_t> shown(size_t dim) const {
    std::vector<int64_t> positions;
    const int64_t size = sizes_[dim];
    const bool is_cut = is_summary_ && size > 2 * options_.edge_items;
    for (int64_t i = 0; i < size; ++i) {
      if (is_cut && i == options_.edge_items) {
        positions.push_back(-1);
        i = size - options_.edge_items;
        if (i == size) break;
      }
      positions.push_back(i);
    }
    return positions;
  }

  void visit(size_t dim, int64_t offset, const std::function<void(int64_t)>& see) const {
    if (dim == sizes_.size()) return see(offset);
    for (int64_t position : shown(dim)) {
      if (position >= 0) visit(dim + 1, offset * sizes_[dim] + position, see);
    }
  }

  // Chooses fixed notation unless it loses digits, like NumPy. It shows as many decimals as the
  // largest number needs for its significant digits.
  void choose_format() {
    format_ = options_.float_format;
    if (!is_float_) return;
    double largest = 0;
    double smallest = INFINITY;
    visit(0, 0, [&](int64_t index) {
      const double value = std::abs(floats_.const_data_ptr<double>()[index]);
      if (value == 0 || !std::isfinite(value)) return;
      largest = std::max(largest, value);
      smallest = std::min(smallest, value);
    });
    const auto exponent = largest > 0 ? static_cast<int64_t>(std::floor(std::log10(largest))) : 0;
    decimals_ = static_cast<int>(std::max<int64_t>(0, options_.digits - 1 - exponent));
    if (format_ != FloatFormat::kAuto) return;
    const bool is_wide = largest >= 1e8 || (largest > 0 && smallest < 1e-4);
    format_ = is_wide ? FloatFormat::kScientific : FloatFormat::kFixed;
  }

  std::string element(int64_t index) const {
    if (!is_float_) return std::to_string(integers_.const_data_ptr<int64_t>()[index]);
    const double value = floats_.const_data_ptr<double>()[index];
    const int after_point = static_cast<int>(std::max<int64_t>(0, options_.digits - 1));
    if (format_ == FloatFormat::kFixed) return formatted("%.*f", decimals_, value);
    if (format_ == FloatFormat::kScientific) return formatted("%.*e", after_point, value);
    return formatted("%g", value);
  }

  void put(std::string_view piece) {
    out_ += piece;
    column_ += piece.size();
  }

  void new_line(size_t indent) {
    while (!out_.empty() && out_.back() == ' ') out_.pop_back();
    out_ += "\n" + std::string(indent, ' ');
    column_ = indent;
  }

  // Writes the last axis, with as many elements on a line as fit.
  void write_row(int64_t offset, size_t indent) {
    put(options_.open_bracket);
    bool is_first = true;
    for (int64_t position : shown(sizes_.size() - 1)) {
      if (!is_first) put(options_.separator);
      const size_t needed = width_ + options_.separator.size();
      const bool is_full = column_ + needed > static_cast<size_t>(options_.max_line_width);
      if (!is_first && is_full) new_line(indent + kContinuation);
      is_first = false;
      if (position < 0) {
        put("...");
      } else {
        write_element(offset * sizes_.back() + position);
      }
    }
    put(options_.close_bracket);
  }

  // Writes another axis: brackets on separate lines, indented by one more blank in each axis.
  void write_block(size_t dim, int64_t offset, size_t indent) {
    if (dim + 1 == sizes_.size()) return write_row(offset, indent);
    put(options_.open_bracket);
    for (int64_t position : shown(dim)) {
      new_line(indent + 1);
      if (position < 0) {
        put("...");
      } else {
        write_block(dim + 1, offset * sizes_[dim] + position, indent + 1);
      }
    }
    new_line(indent);
    put(options_.close_bracket);
  }

  void write_element(int64_t index) {
    const std::string value = element(index);
    put(std::string(width_ - value.size(), ' ') + value);
  }

  const PrintOptions& options_;
  const std::vector<int64_t> sizes_;
  const bool is_float_;
  const bool is_summary_;
  const at::Tensor floats_;
  const at::Tensor integers_;
  FloatFormat format_ = FloatFormat::kAuto;
  int decimals_ = 0;
  size_t width_ = 0;
  std::string out_;
  size_t column_ = 0;
};

at::Tensor print_tensor(const at::Tensor& tensor, c10::string_view title,
                        int64_t summarise_threshold, int64_t edge_items, int64_t max_line_width,
                        int64_t digits, int64_t float_format, c10::string_view separator,
                        c10::string_view open_bracket, c10::string_view close_bracket) {
  const PrintOptions options{summarise_threshold,
                             edge_items,
                             max_line_width,
                             digits,
                             static_cast<FloatFormat>(float_format),
                             std::string(separator),
                             std::string(open_bracket),
                             std::string(close_bracket)};
  std::string text = std::string(title) + ": ";
  text += TensorText(tensor, options).text(text.size()) + "\n";
  // A single call, so that the texts of several workers do not mix.
  std::fwrite(text.data(), 1, text.size(), stderr);
  return tensor;
}

at::Tensor print_tensor_meta(const at::Tensor& tensor, c10::string_view, int64_t, int64_t, int64_t,
                             int64_t, int64_t, c10::string_view, c10::string_view,
                             c10::string_view) {
  return at::empty_like(tensor);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def(
      "print_tensor(Tensor tensor, str title, int summarise_threshold, int edge_items, "
      "int max_line_width, int digits, int float_format, str separator, str open_bracket, "
      "str close_bracket) -> Tensor");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("print_tensor", print_tensor); }
TORCH_LIBRARY_IMPL(poptorch_emu, Meta, m) { m.impl("print_tensor", print_tensor_meta); }

}  // namespace poptorch_emu
