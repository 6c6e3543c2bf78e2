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

// Calls functions of the host for instructions. The thread that runs the call of the program makes
// all these calls, with the state of PyTorch that it had at the begin. Other workers leave requests
// and wait. That thread also checks regularly whether the call is to be interrupted.
//
// Owns the functions, the requests and a lock.
class HostCalls {
 public:
  // `wake_caller` is called, without the lock, when there is a request.
  explicit HostCalls(std::function<void()> wake_caller) : wake_caller_(std::move(wake_caller)) {}

  // Between calls.
  void add_function(std::string name, HostFunction function);
  // `check` is called ten times a second while a call runs, and throws if the call is to end.
  void set_interrupt_check(std::function<void()> check) { check_interrupt_ = std::move(check); }
  bool checks_interrupts() const { return check_interrupt_ != nullptr; }

  // By the thread that runs the call, which serves requests from then on.
  void begin_call();
  void end_call();

  // By any worker: calls a function, or waits until it has been called. Throws what the function
  // throws, or `Error` if there is none of this name or the call of the program is over.
  std::vector<at::Tensor> call(const std::string& name, std::vector<at::Tensor> inputs);

  // By any thread. Whether there is a request, or a check is due.
  bool has_requests() const;
  // Ends the calls of waiting workers by an `Error`, after the call of the program has failed.
  void cancel();

  // By the thread that runs the call: checks for an interruption if that is due, and serves one
  // request. Returns whether there was a request. Throws what the check throws.
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

  // Constant while a call runs.
  std::thread::id caller_;
  std::optional<at::ThreadLocalState> caller_state_;

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::deque<Request*> requests_;
  std::atomic<size_t> num_requests_ = 0;  // the size of `requests_`, read without the lock
  bool is_cancelled_ = false;
};

}  // namespace poptorch_emu
