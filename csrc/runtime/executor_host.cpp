// How instructions call functions of the host: only the thread that called `run` does so. Another
// worker leaves a request and waits; the caller's thread looks for requests between its actions.

#include <ATen/ThreadLocalState.h>

#include "common/errors.h"
#include "runtime/executor.h"

namespace poptorch_emu {
namespace {

// The host may change its tensors in place, now or later: those of the engine are never the same.
std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

}  // namespace

void Executor::set_host_function(std::string name, HostFunction function) {
  host_functions_[std::move(name)] = std::move(function);
}

std::vector<at::Tensor> Executor::call_host(const std::string& name,
                                            std::vector<at::Tensor> inputs) {
  if (std::this_thread::get_id() == caller_) return call_host_here(name, inputs);
  HostRequest request{name, std::move(inputs)};
  std::unique_lock lock(mutex_);
  host_requests_.push_back(&request);
  progress_.notify_all();
  ++num_waiting_;
  progress_.wait(lock, [&] {
    return request.state == HostRequest::kDone ||
           (error_ && request.state == HostRequest::kWaiting);
  });
  --num_waiting_;
  if (request.state == HostRequest::kWaiting) {
    std::erase(host_requests_, &request);
    throw Error("The call of host function '" + name + "' was given up after another error.");
  }
  if (request.error) std::rethrow_exception(request.error);
  return std::move(request.tensors);
}

bool Executor::serve_host_request(std::unique_lock<std::mutex>& lock) {
  if (host_requests_.empty()) return false;
  HostRequest& request = *host_requests_.front();
  host_requests_.pop_front();
  request.state = HostRequest::kServed;
  lock.unlock();
  try {
    request.tensors = call_host_here(request.name, request.tensors);
  } catch (...) {
    request.error = std::current_exception();
  }
  lock.lock();
  request.state = HostRequest::kDone;
  progress_.notify_all();
  return true;
}

std::vector<at::Tensor> Executor::call_host_here(const std::string& name,
                                                 const std::vector<at::Tensor>& inputs) {
  const auto found = host_functions_.find(name);
  if (found == host_functions_.end()) {
    throw Error("The program calls host function '" + name +
                "', which this executor was not given.");
  }
  std::vector<at::Tensor> results;
  {
    // The function may keep what it is given.
    const SegmentMemory::Suspension as_outside;
    results = copies(inputs);
    const at::ThreadLocalStateGuard as_the_caller(*caller_state_);
    results = found->second(std::move(results));
  }
  return copies(results);
}

}  // namespace poptorch_emu
