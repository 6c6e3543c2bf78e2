#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace poptorch_emu {

// Loops whose parts a worker offers to idle workers. Any worker may run any part, so that parts
// must not depend on each other.
//
// Only one loop is offered at a time. A worker runs all others alone, and also loops within parts.
class SharedLoops {
 public:
  // `wake` is called for a long loop; it makes sleeping workers look for work.
  explicit SharedLoops(std::function<void()> wake) : wake_(std::move(wake)) {}

  using Part = c10::function_ref<void(int64_t begin, int64_t end)>;

  // Runs `part` for parts of [0, count) with `per_part` numbers each; the last one may be smaller.
  // Returns when all have ended, and throws the exception of the first part that threw.
  void run(int64_t count, int64_t per_part, Part part);

  // Runs parts of the offered loop, on an idle worker; returns whether it ran any.
  bool help();

  // Returns the loops of the workers to which the current thread belongs; null for other threads.
  static SharedLoops* of_thread();

  // Registers the current thread as one of the workers, as long as the object exists.
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
  // Number of workers that may be running the offered loop; `run` waits until it is 0.
  std::atomic<int64_t> num_helpers_ = 0;
};

}  // namespace poptorch_emu
