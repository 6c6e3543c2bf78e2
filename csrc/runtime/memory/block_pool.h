#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace poptorch_emu {

// Owns memory from the operating system.
class Block {
 public:
  explicit Block(int64_t num_bytes);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Whether an address lies in some block of this process.
  static bool holds(const void* address);

  void* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void* data_;
  int64_t num_bytes_;
};

// Keeps blocks that are given back for the next request of the same size, so that a program in its
// steady state asks the operating system for nothing. The system zeroes new memory page by page,
// which takes longer than most operations on it. Any thread may use a pool, also in a forked child.
class BlockPool {
 public:
  // Returns a block of at least this size.
  std::unique_ptr<Block> take(int64_t num_bytes);
  void give_back(std::unique_ptr<Block> block);

  // Releases the blocks that are not in use.
  void trim();

  // Bytes of all blocks that exist, in use or not.
  int64_t num_bytes() const;

  // From now on blocks that come back are released. Results may live longer than the engine.
  void close();

 private:
  using BlocksBySize = std::map<int64_t, std::vector<std::unique_ptr<Block>>>;
  BlocksBySize take_free();  // called with the mutex

  BlocksBySize free_;
  int64_t num_bytes_ = 0;
  bool is_closed_ = false;
};

}  // namespace poptorch_emu
