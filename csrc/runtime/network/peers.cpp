// The only file that uses torch.distributed.

#include "runtime/network/peers.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <exception>
#include <sstream>
#include <vector>

#include "common/errors.h"

namespace poptorch_emu {

struct Peers::Group {
  c10::intrusive_ptr<c10d::ProcessGroup> processes;
};

struct Peers::Message {
  at::Tensor tensor;
  int64_t peer;
  c10::intrusive_ptr<c10d::Work> work;
};

namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Peers::Peers(const std::string& group_name, std::chrono::milliseconds timeout)
    : group_(new Group{c10d::resolve_process_group(group_name)}), timeout_(timeout) {}

Peers::~Peers() = default;

int64_t Peers::process() const { return group_->processes->getRank(); }
int64_t Peers::num_processes() const { return group_->processes->getSize(); }

Peers::MessagePtr Peers::send(const at::Tensor& tensor, int64_t to, int64_t tag) {
  return begin(tensor, to, [&](Message& message) {
    std::vector<at::Tensor> tensors{tensor};
    message.work = group_->processes->send(tensors, static_cast<int>(to), static_cast<int>(tag));
  });
}

Peers::MessagePtr Peers::receive(const at::Tensor& tensor, int64_t from, int64_t tag) {
  return begin(tensor, from, [&](Message& message) {
    std::vector<at::Tensor> tensors{tensor};
    message.work = group_->processes->recv(tensors, static_cast<int>(from), static_cast<int>(tag));
  });
}

// Begins a message. A cancelling thread finds it in the list, or the message is rejected here.
Peers::MessagePtr Peers::begin(const at::Tensor& tensor, int64_t peer, const Start& start) {
  check_not_cancelled();
  const auto message = std::make_shared<Message>(Message{tensor, peer, nullptr});
  try {
    start(*message);
  } catch (const std::exception& error) {
    fail(peer, first_line(error.what()), false);
  }
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(message);
  }
  check_not_cancelled();
  return message;
}

void Peers::wait(const MessagePtr& message) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::string fault;
  try {
    if (message->work->wait(timeout_)) {
      end(message);
      return;
    }
    fault = "the message was given up";
  } catch (const std::exception& error) {
    fault = first_line(error.what());
  }
  end(message);
  fail(message->peer, fault, Clock::now() - start >= timeout_);
}

void Peers::fail(int64_t peer, const std::string& fault, bool is_silent) {
  check_not_cancelled();
  const std::lock_guard lock(mutex_);
  lost_process_ = peer;
  if (is_silent) {
    std::ostringstream out;
    out << "it was silent for " << std::chrono::duration<double>(timeout_).count()
        << " s (POPTORCH_EMU_TIMEOUT)";
    throw Error(out.str());
  }
  throw Error("the connection to it was lost: " + fault);
}

void Peers::cancel(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (is_cancelled_) return;
  is_cancelled_ = true;
  reason_ = reason;
  for (const MessagePtr& message : pending_) {
    try {
      message->work->abort();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // A backend that cannot abort ends the wait by its timeout.
    }
  }
}

int64_t Peers::lost_process() const {
  const std::lock_guard lock(mutex_);
  return lost_process_;
}

void Peers::end(const MessagePtr& message) {
  const std::lock_guard lock(mutex_);
  pending_.remove(message);
}

void Peers::check_not_cancelled() const {
  const std::lock_guard lock(mutex_);
  if (is_cancelled_) throw Error(reason_);
}

}  // namespace poptorch_emu
