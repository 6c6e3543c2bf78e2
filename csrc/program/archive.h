#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "common/errors.h"
#include "common/ids.h"

namespace poptorch_emu {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

// Returns a number that detects changed bytes.
uint64_t checksum(std::string_view bytes);

// Numbers are written as they lie in memory, strings and vectors after their length.
// `fields(archive, structure)` writes or reads a structure member by member. One function serves
// both directions, so that the reader expects exactly the members that the writer writes.

template <typename T>
concept Number = std::is_arithmetic_v<T>;
template <typename T>
concept Enumeration = std::is_enum_v<T>;

// Number of values of an enumeration, counted from 0; 0 if it is never read.
template <Enumeration T>
inline constexpr int64_t kNumValues = 0;
template <>
inline constexpr int64_t kNumValues<at::ScalarType> =
    static_cast<int64_t>(at::ScalarType::NumOptions);

// Appends values to a string.
class Writer {
 public:
  static constexpr bool kReads = false;

  template <typename... Values>
  void operator()(const Values&... values) {
    (one(values), ...);
  }

  void raw(const void* data, size_t size) { bytes_.append(static_cast<const char*>(data), size); }
  std::string take() { return std::move(bytes_); }

 private:
  template <Number T>
  void one(const T& value) {
    raw(&value, sizeof value);
  }
  template <Enumeration T>
  void one(const T& value) {
    one(static_cast<int64_t>(value));
  }
  template <typename Tag>
  void one(const Id<Tag>& id) {
    one(id.value);
  }
  void one(const std::string& text) {
    one(static_cast<int64_t>(text.size()));
    raw(text.data(), text.size());
  }
  void one(const at::Tensor& tensor);
  void one(const c10::IValue& value);
  template <typename T>
  void one(const std::vector<T>& values) {
    one(static_cast<int64_t>(values.size()));
    for (const T& value : values) one(value);
  }
  template <typename... Kinds>
  void one(const std::variant<Kinds...>& value) {
    one(static_cast<int64_t>(value.index()));
    std::visit([this](const auto& kind) { one(kind); }, value);
  }
  template <typename T>
    requires std::is_class_v<T>
  void one(const T& structure) {
    fields(*this, const_cast<T&>(structure));  // A writer does not change it.
  }

  std::string bytes_;
};

// Maximum nesting depth of instructions; otherwise damaged bytes could exhaust the stack.
constexpr int64_t kMaxDepth = 64;

// Reads values from bytes; throws `Error` if bytes are missing, or if no such value exists.
class Reader {
 public:
  static constexpr bool kReads = true;

  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename... Values>
  void operator()(Values&... values) {
    (one(values), ...);
  }

  const char* raw(size_t size) {
    if (size > rest_.size()) {
      throw Error("The program is damaged: " + std::to_string(size) + " bytes are expected where " +
                  std::to_string(rest_.size()) + " are left. Compile the model again.");
    }
    const char* data = rest_.data();
    rest_.remove_prefix(size);
    return data;
  }
  size_t left() const { return rest_.size(); }

  // Returns a length that the remaining bytes can hold, if each entry has at least one byte.
  int64_t length() { return below(static_cast<int64_t>(rest_.size()) + 1); }

  // Returns a number from 0 to `end` - 1; throws for any other.
  int64_t below(int64_t end) {
    int64_t number = 0;
    one(number);
    if (number < 0 || number >= end) {
      throw Error("The program is damaged: " + std::to_string(number) +
                  " stands where a number below " + std::to_string(end) +
                  " is expected. Compile the model again.");
    }
    return number;
  }

 private:
  template <Number T>
  void one(T& value) {
    std::memcpy(&value, raw(sizeof value), sizeof value);
  }
  template <Enumeration T>
  void one(T& value) {
    static_assert(kNumValues<T> > 0);
    value = static_cast<T>(below(kNumValues<T>));
  }
  void one(bool& value) { value = *raw(1) != 0; }
  template <typename Tag>
  void one(Id<Tag>& id) {
    one(id.value);
  }
  void one(std::string& text) {
    const auto size = static_cast<size_t>(length());
    text.assign(raw(size), size);
  }
  void one(at::Tensor& tensor);
  void one(c10::IValue& value) { value = argument(); }
  template <typename T>
  void one(std::vector<T>& values) {
    values.clear();
    for (int64_t left = length(); left > 0; --left) {
      if constexpr (std::is_default_constructible_v<T>) {
        one(values.emplace_back());
      } else {
        values.push_back(make<T>());
      }
    }
  }
  template <typename... Kinds>
  void one(std::variant<Kinds...>& value) {
    const int64_t index = below(sizeof...(Kinds));
    int64_t kind = 0;
    ((kind++ == index ? one(value.template emplace<Kinds>()) : void()), ...);
  }
  template <typename T>
    requires std::is_class_v<T>
  void one(T& structure) {
    fields(*this, structure);
  }
  c10::IValue argument();
  // Creates a structure that has no default constructor.
  template <typename T>
  T make();

  std::string_view rest_;
  int64_t depth_ = 0;  // nesting depth of the current instruction
};

}  // namespace poptorch_emu
