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

// The other processes of a torch.distributed group, and tagged messages to and from them. Any
// backend that sends CPU tensors is supported.
//
// One thread at a time sends, receives and waits; any thread may cancel.
class Peers {
 public:
  // A tensor in transit. It lives until the message is waited for.
  struct Message;
  using MessagePtr = std::shared_ptr<Message>;

  // `group_name` is the name of the ProcessGroup. No wait takes longer than `timeout`.
  Peers(const std::string& group_name, std::chrono::milliseconds timeout);
  ~Peers();

  int64_t process() const;
  int64_t num_processes() const;

  // Start to send or receive a contiguous tensor. Messages of a pair and tag arrive in order.
  MessagePtr send(const at::Tensor& tensor, int64_t to, int64_t tag);
  MessagePtr receive(const at::Tensor& tensor, int64_t from, int64_t tag);
  // Throws `Error` when the other process has exited or does not answer, or after `cancel`.
  void wait(const MessagePtr& message);

  // Ends all current and future waits with `reason`; only the first call counts.
  void cancel(const std::string& reason);

  // Returns the process whose message failed; -1 if none did.
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
