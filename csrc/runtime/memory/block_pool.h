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

  // Returns whether an address lies in a block of this process.
  static bool holds(const void* address);

  void* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void* data_;
  int64_t num_bytes_;
};

// Keeps returned blocks for the next request of the same size, so that a program in its steady
// state requests no memory from the operating system. The system zeroes new memory page by page,
// which takes longer than most operations on it. Any thread may use a pool, also in a forked child.
class BlockPool {
 public:
  // Returns a block of at least this size.
  std::unique_ptr<Block> take(int64_t num_bytes);
  void give_back(std::unique_ptr<Block> block);

  // Releases the blocks that are not in use.
  void trim();

  // Returns the bytes of all existing blocks, in use or not.
  int64_t num_bytes() const;

  // Releases blocks that come back from now on, because results may outlive the engine.
  void close();

 private:
  using BlocksBySize = std::map<int64_t, std::vector<std::unique_ptr<Block>>>;
  BlocksBySize take_free();  // called with the mutex held

  BlocksBySize free_;
  int64_t num_bytes_ = 0;
  bool is_closed_ = false;
};

}  // namespace poptorch_emu
