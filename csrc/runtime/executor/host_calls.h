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

// A host function that a program calls.
using HostFunction = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// Calls host functions for instructions. The thread that runs the call of the program makes all of
// these calls, with the PyTorch state that it had at the start. Other workers leave requests and
// wait. The thread also checks regularly whether the call must be interrupted.
//
// This class owns the functions, the requests and a lock.
class HostCalls {
 public:
  // `wake_caller` is called without the lock when a request arrives.
  explicit HostCalls(std::function<void()> wake_caller) : wake_caller_(std::move(wake_caller)) {}

  // Adds a host function; called between calls of the program.
  void add_function(std::string name, HostFunction function);
  // `check` is called ten times a second during a call; it throws to end the call.
  void set_interrupt_check(std::function<void()> check) { check_interrupt_ = std::move(check); }
  bool checks_interrupts() const { return check_interrupt_ != nullptr; }

  // Called by the thread that runs the call and serves requests from then on.
  void begin_call();
  void end_call();

  // Called by any worker: calls a function, or waits for its call. Rethrows the function's
  // exception. Throws `Error` if there is no such function or if the call of the program is over.
  std::vector<at::Tensor> call(const std::string& name, std::vector<at::Tensor> inputs);

  // Called by any thread: whether there is a request, or a check is due.
  bool has_requests() const;
  // Ends the calls of waiting workers with an `Error`, after the call of the program has failed.
  void cancel();

  // Called by the thread that runs the call: checks for an interruption if due, and serves one
  // request. Returns whether there was a request. Rethrows exceptions of the check.
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
  bool is_check_due() const;

  const std::function<void()> wake_caller_;
  std::map<std::string, HostFunction> functions_;
  std::function<void()> check_interrupt_;
  std::atomic<int64_t> last_check_ns_ = 0;

  // The thread that runs the call and its PyTorch state, which stay the same during the call.
  std::thread::id caller_;
  std::optional<at::ThreadLocalState> caller_state_;

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::deque<Request*> requests_;
  std::atomic<size_t> num_requests_ = 0;  // the size of `requests_`, read without the lock
  bool is_cancelled_ = false;
};

}  // namespace poptorch_emu
