#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace poptorch_emu {

// Adds the summands of one sum in the order of their numbers, whichever thread brings one first. A
// small summand whose turn has not come is copied, and the thread that adds the one before adds it,
// too; so a slower thread delays no other. Each number comes once.
//
// A summand is one or two tensors, or what is made of them.
class SummandOrder {
 public:
  // Adds summand `index`, or keeps it if that is allowed and it is small. Returns false if neither:
  // then the caller waits for its turn. `add(first, second, number)` adds this summand, or one that
  // was kept; one thread at a time calls it, in the order of the numbers.
  template <class Add>
  bool add(int64_t index, at::Tensor& first, const at::Tensor& second, bool may_keep,
           const Add& add) {
    if (next_ == index) {
      add(first, second, index);
      next_ = index + 1;
    } else if (!may_keep || !keep(index, first, second)) {
      return false;
    }
    // After a thread has kept a summand it looks whether its turn has come, and after a thread has
    // added one it looks for the next: one of the two sees a summand whose turn comes meanwhile.
    int64_t number = next_;
    for (Kept* kept = take(number); kept != nullptr; kept = take(number)) {
      add(kept->first, kept->second, number);
      free(*kept);
      next_ = ++number;
    }
    return true;
  }

  bool has_turn(int64_t index) const { return next_ == index; }
  // Begins a new sum, when no thread adds.
  void clear();

 private:
  struct Kept {
    at::Tensor first, second;  // their memory stays
  };

  bool keep(int64_t index, const at::Tensor& first, const at::Tensor& second);
  // Returns a place with this number, or a free one for kFree, and marks it as taken; null if there
  // is none. Only one thread gets it.
  Kept* take(int64_t number);
  std::atomic<int64_t>& number_of(const Kept& kept) { return numbers_[&kept - kept_.data()]; }
  void free(const Kept& kept) { number_of(kept) = kFree; }

  // A thread is seldom further ahead (assumed).
  static constexpr int64_t kMostKept = 4;
  static constexpr int64_t kFree = -1, kTaken = -2;

  alignas(64) std::atomic<int64_t> next_ = 0;
  std::array<std::atomic<int64_t>, kMostKept> numbers_ = {kFree, kFree, kFree, kFree};
  std::array<Kept, kMostKept> kept_;
};

}  // namespace poptorch_emu
