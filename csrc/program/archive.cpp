#include "program/archive.h"

#include <ATen/ops/empty.h>

#include "program/program.h"

namespace poptorch_emu {
namespace {

// Kind of an argument; the numbers are part of the format.
enum class Tag {
  kNone,
  kTensor,
  kBool,
  kInt,
  kDouble,
  kString,
  kDevice,
  kBools,
  kInts,
  kDoubles,
  kTensors,
  kOptionalTensors,
  kStrings,
  kOptionalNumbers,
};

// Returns a list with the items where the flags are set, and empty entries elsewhere.
template <typename T, typename Item>
c10::List<std::optional<T>> spread(const std::vector<int64_t>& is_there,
                                   const std::vector<Item>& items) {
  c10::List<std::optional<T>> list;
  size_t next = 0;
  for (int64_t flag : is_there) {
    list.push_back(flag ? std::optional<T>(items.at(next++)) : std::nullopt);
  }
  return list;
}

bool has_optional_numbers(const c10::IValue& value) {
  static const c10::TypePtr kType = c10::OptionalType::create(c10::NumberType::get());
  return value.isList() && *value.toList().elementType() == *kType;
}

}  // namespace

void Writer::one(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw Error(
        "A constant is " + describe(tensor) +
        " of a sparse or quantised layout, which cannot be written to a file. Make it dense, or "
        "neither save nor cache the model.");
  }
  const at::Tensor value = tensor.detach().cpu().contiguous();
  one(value.scalar_type());
  one(value.sizes().vec());
  one(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  raw(value.const_data_ptr(), value.nbytes());
}

void Reader::one(at::Tensor& tensor) {
  auto dtype = at::ScalarType::Float;
  std::vector<int64_t> sizes;
  bool is_number = false;
  (*this)(dtype, sizes, is_number);
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t size : sizes) {
    // Each product is compared with the number of remaining bytes first, so it cannot overflow.
    if (size < 0 || (size > 0 && bytes > static_cast<int64_t>(left()) / size)) {
      throw Error(
          "The program is damaged: a constant has more values than the file has bytes. "
          "Compile the model again.");
    }
    bytes *= size;
  }
  const char* data = raw(bytes);
  tensor = at::empty(sizes, at::TensorOptions(dtype));
  if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), data, bytes);
  if (is_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
}

void Writer::one(const c10::IValue& value) {
  const auto tagged = [this](Tag tag, const auto& content) { (*this)(tag, content); };
  if (value.isNone()) {
    one(Tag::kNone);
  } else if (value.isTensor()) {
    tagged(Tag::kTensor, value.toTensor());
  } else if (value.isBool()) {
    tagged(Tag::kBool, value.toBool());
  } else if (value.isInt()) {
    tagged(Tag::kInt, value.toInt());
  } else if (value.isDouble()) {
    tagged(Tag::kDouble, value.toDouble());
  } else if (value.isString()) {
    tagged(Tag::kString, value.toStringRef());
  } else if (value.isDevice()) {
    tagged(Tag::kDevice, value.toDevice().str());
  } else if (value.isBoolList()) {
    const c10::List<bool> list = value.toBoolList();
    tagged(Tag::kBools, std::vector<int64_t>(list.begin(), list.end()));
  } else if (value.isIntList()) {
    tagged(Tag::kInts, value.toIntVector());
  } else if (value.isDoubleList()) {
    tagged(Tag::kDoubles, value.toDoubleVector());
  } else if (value.isTensorList()) {
    tagged(Tag::kTensors, value.toTensorVector());
  } else if (value.isOptionalTensorList()) {
    std::vector<int64_t> is_there;
    std::vector<at::Tensor> items;
    for (const c10::IValue& item : value.toListRef()) {
      is_there.push_back(item.isNone() ? 0 : 1);
      if (!item.isNone()) items.push_back(item.toTensor());
    }
    tagged(Tag::kOptionalTensors, is_there);
    one(items);
  } else if (value.isList() && *value.toList().elementType() == *c10::StringType::get()) {
    std::vector<std::string> items;
    for (const c10::IValue& item : value.toListRef()) items.push_back(item.toStringRef());
    tagged(Tag::kStrings, items);
  } else if (has_optional_numbers(value)) {
    std::vector<int64_t> is_there;
    std::vector<double> items;
    for (const c10::IValue& item : value.toListRef()) {
      is_there.push_back(item.isNone() ? 0 : 1);
      if (!item.isNone()) items.push_back(item.toScalar().toDouble());
    }
    tagged(Tag::kOptionalNumbers, is_there);
    one(items);
  } else {
    throw Error("An argument is of type " + value.type()->str() +
                ", which cannot be written to a file. Neither save nor cache this model.");
  }
}

c10::IValue Reader::argument() {
  const auto content = [this]<typename T>(T empty) {
    (*this)(empty);
    return empty;
  };
  switch (static_cast<Tag>(below(static_cast<int64_t>(Tag::kOptionalNumbers) + 1))) {
    case Tag::kNone:
      return {};
    case Tag::kTensor:
      return content(at::Tensor());
    case Tag::kBool:
      return content(false);
    case Tag::kInt:
      return content(int64_t{0});
    case Tag::kDouble:
      return content(0.0);
    case Tag::kString:
      return content(std::string());
    case Tag::kDevice:
      return c10::Device(content(std::string()));
    case Tag::kBools: {
      c10::List<bool> list;
      for (int64_t item : content(std::vector<int64_t>())) list.push_back(item != 0);
      return list;
    }
    case Tag::kInts:
      return content(std::vector<int64_t>());
    case Tag::kDoubles:
      return content(std::vector<double>());
    case Tag::kTensors:
      return content(std::vector<at::Tensor>());
    case Tag::kOptionalTensors: {
      const std::vector<int64_t> is_there = content(std::vector<int64_t>());
      return spread<at::Tensor>(is_there, content(std::vector<at::Tensor>()));
    }
    case Tag::kStrings:
      return content(std::vector<std::string>());
    case Tag::kOptionalNumbers: {
      const std::vector<int64_t> is_there = content(std::vector<int64_t>());
      return spread<at::Scalar>(is_there, content(std::vector<double>()));
    }
  }
  return {};
}

// Computes FNV-1a on eight bytes at a time.
uint64_t checksum(std::string_view bytes) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t sum = 0xcbf29ce484222325;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    sum = (sum ^ word) * kPrime;
    sum ^= sum >> 32;
  }
  for (char byte : bytes) sum = (sum ^ static_cast<unsigned char>(byte)) * kPrime;
  return sum;
}

}  // namespace poptorch_emu
