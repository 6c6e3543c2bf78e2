#include "runtime/memory/segment_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "runtime/memory/small_blocks.h"

namespace poptorch_emu {
namespace {

// Two lines of the cache, so that what follows is aligned like PyTorch's own tensors.
constexpr int64_t kHeadBytes = 128;

thread_local SegmentMemory* current = nullptr;
std::atomic<int64_t> num_threads = 0;
// Of this thread, with its number in front.
thread_local int64_t last_run = 0;
c10::DeleterFnPtr outside_raw_deleter = nullptr;

int64_t next_run() {
  if (last_run == 0) last_run = ++num_threads << 40;
  return ++last_run;
}

// PyTorch's profiler counts the engine's tensors like its own.
void report(void* data, int64_t num_bytes) {
  if (!c10::memoryProfilingEnabled()) return;
  c10::reportMemoryUsageToProfiler(data, num_bytes, 0, 0, at::Device(at::kCPU));
}

}  // namespace

// The way back of a piece of memory; lies right before it. One of `block` and `flags` is set.
struct SegmentMemory::Handed {
  // From the pool.
  std::unique_ptr<Block> block = nullptr;
  std::shared_ptr<BlockPool> pool = nullptr;
  // From the arena.
  std::shared_ptr<std::vector<std::atomic<char>>> flags = nullptr;
  std::shared_ptr<Block> arena = nullptr;
  int64_t num_bytes = 0;  // as asked for
  // Which piece of which run it is; 0 where nobody notes that.
  int64_t run = 0;
  size_t piece = 0;
};

const std::shared_ptr<Block>& Arena::block(int64_t num_bytes) {
  if (block_ == nullptr || block_->num_bytes() < num_bytes) {
    block_.reset();
    block_ = std::make_shared<Block>(num_bytes);
  }
  return block_;
}

SegmentMemory::Scope::Scope(SegmentMemory& memory, Arena& arena)
    : memory_(memory), before_(current) {
  memory_.begin(arena);  // May fail for want of memory, and then there is no scope.
  current = &memory_;
}

SegmentMemory::Scope::~Scope() {
  current = before_;
  memory_.end(std::uncaught_exceptions() > num_exceptions_);
}

SegmentMemory::Suspension::Suspension() : before_(std::exchange(current, nullptr)) {}

SegmentMemory::Suspension::~Suspension() { current = before_; }

void SegmentMemory::begin(Arena& arena) {
  run_ = next_run();
  arena_ = &arena;
  next_piece_ = 0;
  is_as_planned_ = true;
  if (num_plans_ == 0) follow(common_->get());
  if (plan_ != nullptr && plan_->num_bytes > 0) block_ = arena.block(plan_->num_bytes);
}

void SegmentMemory::end(bool has_failed) {
  block_.reset();
  if (is_recording()) {
    const std::vector<Allocation> allocations = std::exchange(recorded_, {});
    clock_ = 0;
    if (has_failed) return;
    follow(std::make_shared<const ArenaPlan>(allocations));
    common_->set(plan_);
    pool_->trim();  // Of what the run took, most has a place in the arena from now on.
    return;
  }
  if (plan_ == nullptr) return;
  const bool is_kept = std::any_of(is_live_->begin(), is_live_->end(),
                                   [](const std::atomic<char>& flag) { return flag.load(); });
  if (is_kept) arena_->abandon();
  if (is_kept || !is_as_planned_ || !plan_->may_end_at(next_piece_)) plan_.reset();
}

void SegmentMemory::follow(std::shared_ptr<const ArenaPlan> plan) {
  if (plan == nullptr) return;
  ++num_plans_;
  is_live_ = std::make_shared<std::vector<std::atomic<char>>>(plan->pieces.size());
  plan_ = std::move(plan);
}

void* SegmentMemory::take(int64_t num_bytes) {
  static_assert(sizeof(Handed) <= kHeadBytes);
  Handed handed;
  handed.num_bytes = num_bytes;
  num_bytes += kHeadBytes;
  const size_t index = next_piece_++;
  if (is_recording()) {
    recorded_.push_back({clock_++, ArenaPlan::kEndOfRun, num_bytes});
    handed.run = run_;
    handed.piece = index;
  } else if (plan_ != nullptr && index >= plan_->pieces.size()) {
    handed.run = run_;  // No harm if it lives on.
  } else if (plan_ != nullptr && is_as_planned_) {
    const std::vector<ArenaPlan::Piece>& pieces = plan_->pieces;
    is_as_planned_ = pieces[index].allocation.num_bytes == num_bytes;
    const bool has_place = is_as_planned_ && pieces[index].offset >= 0;
    std::vector<std::atomic<char>>& flags = *is_live_;
    const auto is_taken = [&flags](int32_t piece) {
      return flags[piece].load(std::memory_order_acquire) != 0;
    };
    if (has_place && !is_taken(static_cast<int32_t>(index)) &&
        std::none_of(plan_->neighbours[index].begin(), plan_->neighbours[index].end(), is_taken)) {
      flags[index].store(1, std::memory_order_relaxed);
      handed.flags = is_live_;
      handed.arena = block_;
      handed.piece = index;
      return put_before(static_cast<char*>(block_->data()) + pieces[index].offset,
                        std::move(handed));
    }
    if (has_place) is_as_planned_ = false;
  }
  handed.pool = pool_;
  handed.block = pool_->take(num_bytes);
  void* const start = handed.block->data();
  return put_before(start, std::move(handed));
}

void* SegmentMemory::put_before(void* start, Handed handed) {
  void* const data = static_cast<char*>(start) + kHeadBytes;
  report(data, handed.num_bytes);
  new (start) Handed(std::move(handed));
  return data;
}

void SegmentMemory::give_back(void* data) {
  auto* const head = reinterpret_cast<Handed*>(static_cast<char*>(data) - kHeadBytes);
  Handed handed = std::move(*head);
  head->~Handed();
  report(data, -handed.num_bytes);
  if (handed.flags != nullptr) {
    (*handed.flags)[handed.piece].store(0, std::memory_order_release);
    return;
  }
  // Released within the run that made it.
  if (current != nullptr && handed.run == current->run_) {
    if (current->is_recording()) {
      current->recorded_[handed.piece].death = current->clock_++;
    } else {
      current->is_as_planned_ = false;
    }
  }
  handed.pool->give_back(std::move(handed.block));
}

class EngineAllocator final : public c10::Allocator {
 public:
  explicit EngineAllocator(c10::Allocator* outside) : outside_(outside) {
    outside_raw_deleter = outside->raw_deleter();
  }

  c10::DataPtr allocate(size_t num_bytes) override {
    if (current == nullptr || num_bytes == 0) return outside_->allocate(num_bytes);
    if (num_bytes < SmallBlocks::kMostBytes) {
      return c10::memoryProfilingEnabled() ? outside_->allocate(num_bytes)
                                           : SmallBlocks::take(static_cast<int64_t>(num_bytes));
    }
    void* const data = current->take(static_cast<int64_t>(num_bytes));
    return {data, data, &SegmentMemory::give_back, at::Device(at::kCPU)};
  }

  // Who asks for raw memory (oneDNN) gives it back without saying where it came from.
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) {
      if (Block::holds(data)) {
        SegmentMemory::give_back(data);
      } else {
        outside_raw_deleter(data);
      }
    };
  }

  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    std::memcpy(target, source, num_bytes);
  }

 private:
  c10::Allocator* const outside_;
};

void install_engine_allocator() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  static EngineAllocator* const allocator = [] {
    auto* made = new EngineAllocator(c10::GetCPUAllocator());  // Lives as long as the process.
    c10::SetCPUAllocator(made, 1);
    return made;
  }();
  static_cast<void>(allocator);
#endif
}

}  // namespace poptorch_emu
