#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>

namespace poptorch_emu {

// The way between a virtual IPU and streaming memory. What lives there is never the tensor that an
// IPU computes with: both ways copy, and are counted. Safe to use from several threads.
class RemoteTraffic {
 public:
  // A copy for the IPU of a tensor in streaming memory.
  at::Tensor load(const at::Tensor& remote);
  // Counts what came by way of a copy that was made elsewhere.
  void note_loaded(int64_t num_bytes) { loaded_bytes_ += num_bytes; }
  // A copy for streaming memory of a tensor on the IPU.
  at::Tensor store(const at::Tensor& local);

  int64_t loaded_bytes() const { return loaded_bytes_; }
  int64_t stored_bytes() const { return stored_bytes_; }

 private:
  std::atomic<int64_t> loaded_bytes_ = 0;
  std::atomic<int64_t> stored_bytes_ = 0;
};

}  // namespace poptorch_emu
