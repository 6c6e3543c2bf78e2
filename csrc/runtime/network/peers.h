#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

namespace poptorch_emu {

// The other processes of a group of torch.distributed, and tagged messages to and from them. Any
// backend that sends tensors of the CPU will do.
//
// One thread at a time sends, receives and waits; any thread may cancel.
class Peers {
 public:
  // A tensor under way; it lives until the message is waited for.
  struct Message;
  using MessagePtr = std::shared_ptr<Message>;

  // `group_name` is that of `ProcessGroup.group_name`. No wait is longer than `timeout`.
  Peers(const std::string& group_name, std::chrono::milliseconds timeout);
  ~Peers();

  int64_t process() const;
  int64_t num_processes() const;

  // Begin to send or receive a contiguous tensor. Messages of one pair and tag arrive in order.
  MessagePtr send(const at::Tensor& tensor, int64_t to, int64_t tag);
  MessagePtr receive(const at::Tensor& tensor, int64_t from, int64_t tag);
  // Throws `Error` when the other process is gone or silent, or after `cancel`.
  void wait(const MessagePtr& message);

  // Ends all that waits, now and later, with `reason`; the first one counts.
  void cancel(const std::string& reason);

  // The process that a message failed of, -1 if none did.
  int64_t lost_process() const;

 private:
  using Start = std::function<void(Message&)>;
  MessagePtr begin(const at::Tensor& tensor, int64_t peer, const Start& start);
  void end(const MessagePtr& message);
  [[noreturn]] void fail(int64_t peer, const std::string& fault, bool is_silent);
  void check_not_cancelled() const;

  struct Group;
  const std::unique_ptr<Group> group_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::list<MessagePtr> pending_;
  std::string reason_;
  bool is_cancelled_ = false;
  int64_t lost_process_ = -1;
};

}  // namespace poptorch_emu
