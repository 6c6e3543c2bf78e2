#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace poptorch_emu {

// Loops of which a worker offers parts to idle workers. Which worker runs which part is left to
// chance, so the parts must not depend on each other.
//
// One loop at a time is offered; others, and those within a part, are run by their worker alone.
class SharedLoops {
 public:
  // `wake` is called for a loop that is long enough, and has sleeping workers look.
  explicit SharedLoops(std::function<void()> wake) : wake_(std::move(wake)) {}

  using Part = c10::function_ref<void(int64_t begin, int64_t end)>;

  // Runs `part` for parts of [0, count) of `per_part` numbers, of which the last may have fewer.
  // Returns when all have ended; throws what the first one threw that did.
  void run(int64_t count, int64_t per_part, Part part);

  // By a worker that has nothing to do: runs parts of what is offered; whether it ran any.
  bool help();

  // The loops of the workers to which the current thread belongs; null for other threads.
  static SharedLoops* of_thread();

  // Has the current thread be one of the workers.
  class Member {
   public:
    explicit Member(SharedLoops& loops);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;
  };

 private:
  struct Loop;

  const std::function<void()> wake_;
  std::atomic<Loop*> offered_ = nullptr;
  // How many may be at work on what is offered: the loop stays until they have left.
  std::atomic<int64_t> num_helpers_ = 0;
};

}  // namespace poptorch_emu
