#include "runtime/executor/host_calls.h"

#include <utility>

#include "common/clock.h"
#include "common/errors.h"
#include "runtime/memory/engine_memory.h"

namespace poptorch_emu {
namespace {

constexpr int64_t kNsBetweenChecks = 100'000'000;

// The host may change its tensors in place at any time, so the engine never shares tensors with it.
std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

}  // namespace

void HostCalls::add_function(std::string name, HostFunction function) {
  functions_[std::move(name)] = std::move(function);
}

void HostCalls::begin_call() {
  caller_ = std::this_thread::get_id();
  caller_state_.emplace();
  is_cancelled_ = false;
  last_check_ns_ = now_ns();
}

void HostCalls::end_call() { caller_state_.reset(); }

std::vector<at::Tensor> HostCalls::call(const std::string& name, std::vector<at::Tensor> inputs) {
  if (std::this_thread::get_id() == caller_) return call_here(name, inputs);
  Request request{name, std::move(inputs)};
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(&request);
    num_requests_ = requests_.size();
  }
  wake_caller_();
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] {
    return request.state == Request::kDone || (is_cancelled_ && request.state == Request::kWaiting);
  });
  if (request.state == Request::kWaiting) {
    std::erase(requests_, &request);
    num_requests_ = requests_.size();
    throw Error("The call of host function '" + name +
                "' was cancelled because the model had failed elsewhere.");
  }
  if (request.error) std::rethrow_exception(request.error);
  return std::move(request.tensors);
}

bool HostCalls::has_requests() const { return num_requests_ > 0 || is_check_due(); }

bool HostCalls::is_check_due() const {
  return checks_interrupts() && now_ns() - last_check_ns_ >= kNsBetweenChecks;
}

void HostCalls::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  progress_.notify_all();
}

bool HostCalls::serve() {
  if (is_check_due()) {
    last_check_ns_ = now_ns();
    const SegmentMemory::Suspension as_outside;
    check_interrupt_();
  }
  std::unique_lock lock(mutex_);
  if (requests_.empty()) return false;
  Request& request = *requests_.front();
  requests_.pop_front();
  num_requests_ = requests_.size();
  request.state = Request::kServed;
  lock.unlock();
  try {
    request.tensors = call_here(request.name, request.tensors);
  } catch (...) {
    request.error = std::current_exception();
  }
  lock.lock();
  request.state = Request::kDone;
  progress_.notify_all();
  return true;
}

std::vector<at::Tensor> HostCalls::call_here(const std::string& name,
                                             const std::vector<at::Tensor>& inputs) const {
  const auto found = functions_.find(name);
  if (found == functions_.end()) {
    throw Error("The program calls host function '" + name +
                "', which this executor was not given.");
  }
  std::vector<at::Tensor> results;
  {
    // Suspends the memory plan, because the function may keep its arguments.
    const SegmentMemory::Suspension as_outside;
    results = copies(inputs);
    const at::ThreadLocalStateGuard as_the_caller(*caller_state_);
    results = found->second(std::move(results));
  }
  return copies(results);
}

}  // namespace poptorch_emu
