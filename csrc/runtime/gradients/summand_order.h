#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace poptorch_emu {

// Adds the summands of one sum in the order of their indices, in whatever order threads bring them.
// A small summand that is early is copied, and the thread that adds the summand before it also adds
// the copy. A slow thread thus delays no other. Each index is added once.
//
// A summand is one or two tensors, or a value computed from them, such as their product.
class SummandOrder {
 public:
  // Adds summand `index`, or keeps it if `may_keep` and it is small. Returns false otherwise; the
  // caller must then wait for its turn. `add(first, second, number)` adds this summand or a kept
  // one; one thread at a time calls it, in the order of the numbers.
  template <class Add>
  bool add(int64_t index, at::Tensor& first, const at::Tensor& second, bool may_keep,
           const Add& add) {
    if (next_ == index) {
      add(first, second, index);
      next_ = index + 1;
    } else if (!may_keep || !keep(index, first, second)) {
      return false;
    }
    // A thread that has kept a summand checks whether its turn has come, and a thread that has
    // added one checks for the next. One of the two thus sees a summand whose turn comes meanwhile.
    int64_t number = next_;
    for (Kept* kept = take(number); kept != nullptr; kept = take(number)) {
      add(kept->first, kept->second, number);
      free(*kept);
      next_ = ++number;
    }
    return true;
  }

  bool has_turn(int64_t index) const { return next_ == index; }
  // Begins a new sum. No thread may be adding.
  void clear();

 private:
  struct Kept {
    at::Tensor first, second;  // copies, whose memory is kept
  };

  bool keep(int64_t index, const at::Tensor& first, const at::Tensor& second);
  // Returns an entry with this number, or a free one for kFree, and marks it as taken; null if
  // there is none. Only one thread receives it.
  Kept* take(int64_t number);
  std::atomic<int64_t>& number_of(const Kept& kept) { return numbers_[&kept - kept_.data()]; }
  void free(const Kept& kept) { number_of(kept) = kFree; }

  // Maximum number of kept summands; assumed: a thread is rarely further ahead.
  static constexpr int64_t kMostKept = 4;
  static constexpr int64_t kFree = -1, kTaken = -2;

  alignas(64) std::atomic<int64_t> next_ = 0;
  std::array<std::atomic<int64_t>, kMostKept> numbers_ = {kFree, kFree, kFree, kFree};
  std::array<Kept, kMostKept> kept_;
};

}  // namespace poptorch_emu
