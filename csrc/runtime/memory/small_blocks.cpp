#include "runtime/memory/small_blocks.h"

#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <utility>

namespace poptorch_emu {
namespace {

// Smallest block size, and number of sizes: four for each power of two.
constexpr int64_t kSmallestBytes = 64;
constexpr size_t kNumSizes = 33;
// Maximum number of blocks and bytes of one size that a thread keeps (assumed: a micro-batch of a
// small model has several tens of tensors).
constexpr int64_t kMostKept = 64;
constexpr int64_t kMostBytesKept = 256 * 1024;

constexpr size_t size_of(int64_t num_bytes) {
  if (num_bytes <= kSmallestBytes) return 0;
  // One byte less, so that a power of two belongs to the size class of the numbers below it.
  const auto before = static_cast<uint64_t>(num_bytes - 1);
  const int power = std::bit_width(before) - 1;
  const size_t quarter = (before >> (power - 2)) & 3;
  return 4 * static_cast<size_t>(power - 6) + quarter + 1;
}

constexpr int64_t bytes_of(size_t size) {
  if (size == 0) return kSmallestBytes;
  const size_t power = (size - 1) / 4 + 6, quarters = (size - 1) % 4 + 5;
  return static_cast<int64_t>(quarters << (power - 2));
}

static_assert(size_of(static_cast<int64_t>(SmallBlocks::kMostBytes)) + 1 == kNumSizes);
static_assert(bytes_of(kNumSizes - 1) == static_cast<int64_t>(SmallBlocks::kMostBytes));

// Link to the next kept block, stored in a kept block itself.
struct Kept {
  Kept* next;
};

struct List {
  Kept* first;
  int64_t count;
};

// The blocks that this thread keeps, by size. The array has no destructor, because tensors may be
// released while the thread ends.
thread_local std::array<List, kNumSizes> lists = {};
thread_local bool has_ended = false;

// Releases the kept blocks of a thread when it ends.
struct AtEnd {
  ~AtEnd() {
    has_ended = true;
    for (List& list : lists) {
      while (list.first != nullptr) {
        Kept* const block = list.first;
        list.first = block->next;
        c10::free_cpu(block);
      }
      list.count = 0;
    }
  }
};

// Creates this thread's `AtEnd`.
void expect_end() {
  thread_local const AtEnd at_end;
  static_cast<void>(&at_end);
}

template <size_t kSize>
void give_back(void* data) {
  constexpr int64_t kMost = std::min(kMostKept, kMostBytesKept / bytes_of(kSize));
  List& list = lists[kSize];
  if (has_ended || list.count >= kMost) {
    c10::free_cpu(data);
    return;
  }
  if (list.count == 0) expect_end();
  list.first = new (data) Kept{list.first};
  ++list.count;
}

template <size_t... kSizes>
constexpr std::array<c10::DeleterFnPtr, kNumSizes> ways_back(std::index_sequence<kSizes...>) {
  return {&give_back<kSizes>...};
}

}  // namespace

c10::DataPtr SmallBlocks::take(int64_t num_bytes) {
  static constexpr auto kWaysBack = ways_back(std::make_index_sequence<kNumSizes>());
  const size_t size = size_of(num_bytes);
  List& list = lists[size];
  void* data = list.first;
  if (list.first != nullptr) {
    list.first = list.first->next;
    --list.count;
  } else {
    data = c10::alloc_cpu(static_cast<size_t>(bytes_of(size)));
  }
  return {data, data, kWaysBack[size], at::Device(at::kCPU)};
}

}  // namespace poptorch_emu
