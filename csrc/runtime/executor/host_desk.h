#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace poptorch_emu {

// A function of the host, called in the middle of a program.
using HostFunction = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// Where instructions call functions of the host. Only the thread that runs the call does so, with
// the state of PyTorch that it had then; another worker leaves a request here and waits. Now and
// then that thread looks whether somebody wants the call to end, too.
//
// Owns the functions and the requests, behind a lock of its own.
class HostDesk {
 public:
  // `wake_caller` is called without the lock when there is a request.
  explicit HostDesk(std::function<void()> wake_caller) : wake_caller_(std::move(wake_caller)) {}

  // Between calls.
  void add_function(std::string name, HostFunction function);
  // `look` is called ten times a second while a call runs, and throws if it should end.
  void set_look(std::function<void()> look) { look_ = std::move(look); }
  bool looks() const { return look_ != nullptr; }

  // By the thread that runs the call, which serves from then on.
  void begin_call();
  void end_call();

  // By any worker: calls the function, or waits until it has been called. Throws what it throws,
  // or `Error` if there is none of this name or the call of the program was given up.
  std::vector<at::Tensor> call(const std::string& name, std::vector<at::Tensor> inputs);

  // By any thread. Whether there is something to serve; it may be time to look.
  bool has_requests() const;
  // The call of the program is over by an error: whoever waits gets an `Error`.
  void give_up();

  // By the thread that runs the call: serves one request; returns whether there was any. Throws
  // what the look throws.
  bool serve();

 private:
  struct Request {
    enum State { kWaiting, kServed, kDone };
    const std::string& name;
    std::vector<at::Tensor> tensors;  // the inputs, then the results
    std::exception_ptr error = nullptr;
    State state = kWaiting;
  };

  std::vector<at::Tensor> call_here(const std::string& name,
                                    const std::vector<at::Tensor>& inputs) const;
  bool is_time_to_look() const;

  const std::function<void()> wake_caller_;
  std::map<std::string, HostFunction> functions_;
  std::function<void()> look_;
  std::atomic<int64_t> last_look_ns_ = 0;

  // Of the running call; constant while it runs.
  std::thread::id caller_;
  std::optional<at::ThreadLocalState> caller_state_;

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::deque<Request*> requests_;
  std::atomic<size_t> num_requests_ = 0;  // as many; to be asked without the lock
  bool is_given_up_ = false;
};

}  // namespace poptorch_emu
