#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>

#include <condition_variable>
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
// the state of PyTorch that it had then; another worker leaves a request here and waits.
//
// Owns the functions and the requests, behind a lock of its own.
class HostDesk {
 public:
  // `wake_caller` is called without the lock when there is a request.
  explicit HostDesk(std::function<void()> wake_caller) : wake_caller_(std::move(wake_caller)) {}

  // Between calls.
  void add_function(std::string name, HostFunction function);

  // By the thread that runs the call, which serves from then on.
  void begin_call();
  void end_call();

  // By any worker: calls the function, or waits until it has been called. Throws what it throws,
  // or `Error` if there is none of this name or the call of the program was given up.
  std::vector<at::Tensor> call(const std::string& name, std::vector<at::Tensor> inputs);

  // By any thread.
  bool has_requests() const;
  // The call of the program is over by an error: whoever waits gets an `Error`.
  void give_up();

  // By the thread that runs the call: serves one request; returns whether there was any.
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

  const std::function<void()> wake_caller_;
  std::map<std::string, HostFunction> functions_;

  // Of the running call; constant while it runs.
  std::thread::id caller_;
  std::optional<at::ThreadLocalState> caller_state_;

  mutable std::mutex mutex_;
  std::condition_variable progress_;
  std::deque<Request*> requests_;
  bool is_given_up_ = false;
};

}  // namespace poptorch_emu
