#include "runtime/memory/block_pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <mutex>
#include <new>
#include <utility>

#include "common/spinning_mutex.h"

namespace poptorch_emu {
namespace {

constexpr int64_t kPageBytes = 4096;
// Larger sizes are rounded up to an eighth of a power of two, so that similar sizes share blocks.
constexpr int64_t kExactBytes = 1 << 18;

// One mutex for all pools and one for the list of all blocks, each held for a few instructions
// only. A forked child has only its own thread, so no other thread may hold a mutex during a fork.
// Mutexes are never destroyed, because tensors may be released after everything else.
struct Mutexes {
  SpinningMutex pool;
  SpinningMutex registry;
};

Mutexes& mutexes() {
  static Mutexes* const all = new Mutexes;
  static const int registered = pthread_atfork(
      [] {
        all->pool.lock();
        all->registry.lock();
      },
      [] {
        all->registry.unlock();
        all->pool.unlock();
      },
      [] {
        all->registry.unlock();
        all->pool.unlock();
      });
  static_cast<void>(registered);
  return *all;
}

SpinningMutex& pool_mutex() { return mutexes().pool; }
SpinningMutex& registry_mutex() { return mutexes().registry; }

// Sizes of all blocks, by address.
std::map<const char*, int64_t>& registry() {
  static auto* const blocks = new std::map<const char*, int64_t>;
  return *blocks;
}

int64_t rounded(int64_t num_bytes) {
  int64_t step = kPageBytes;
  while (num_bytes > kExactBytes && step * 16 < num_bytes) step *= 2;
  return (num_bytes + step - 1) / step * step;
}

}  // namespace

Block::Block(int64_t num_bytes) : num_bytes_(num_bytes) {
  data_ = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data_ == MAP_FAILED) throw std::bad_alloc();
  std::lock_guard lock(registry_mutex());
  registry()[static_cast<const char*>(data_)] = num_bytes;
}

Block::~Block() {
  {
    std::lock_guard lock(registry_mutex());
    registry().erase(static_cast<const char*>(data_));
  }
  munmap(data_, static_cast<size_t>(num_bytes_));
}

bool Block::holds(const void* address) {
  const char* const place = static_cast<const char*>(address);
  std::lock_guard lock(registry_mutex());
  auto block = registry().upper_bound(place);
  return block != registry().begin() && place < (--block)->first + block->second;
}

std::unique_ptr<Block> BlockPool::take(int64_t num_bytes) {
  const int64_t size = rounded(num_bytes);
  {
    std::lock_guard lock(pool_mutex());
    const auto found = free_.find(size);
    if (found != free_.end() && !found->second.empty()) {
      std::unique_ptr<Block> block = std::move(found->second.back());
      found->second.pop_back();
      return block;
    }
    num_bytes_ += size;
  }
  try {
    return std::make_unique<Block>(size);
  } catch (...) {
    std::lock_guard lock(pool_mutex());
    num_bytes_ -= size;
    throw;
  }
}

void BlockPool::give_back(std::unique_ptr<Block> block) {
  const int64_t size = block->num_bytes();
  std::lock_guard lock(pool_mutex());
  if (is_closed_) {
    num_bytes_ -= size;
    return;
  }
  free_[size].push_back(std::move(block));
}

int64_t BlockPool::num_bytes() const {
  std::lock_guard lock(pool_mutex());
  return num_bytes_;
}

BlockPool::BlocksBySize BlockPool::take_free() {
  for (const auto& [size, blocks] : free_) num_bytes_ -= size * static_cast<int64_t>(blocks.size());
  return std::exchange(free_, {});
}

void BlockPool::trim() {
  BlocksBySize released;  // destroyed after the lock, because unmapping takes long
  std::lock_guard lock(pool_mutex());
  released = take_free();
}

void BlockPool::close() {
  BlocksBySize released;
  std::lock_guard lock(pool_mutex());
  is_closed_ = true;
  released = take_free();
}

}  // namespace poptorch_emu
