#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>

namespace poptorch_emu {

// Copies tensors between a virtual IPU and streaming memory, and counts their bytes. An IPU never
// computes with a tensor in streaming memory. Any thread may use it.
class RemoteTraffic {
 public:
  // Returns a copy for the IPU of a tensor in streaming memory.
  at::Tensor load(const at::Tensor& remote) {
    note_loaded(static_cast<int64_t>(remote.nbytes()));
    return remote.clone();
  }
  // Counts bytes that were copied to the IPU elsewhere.
  void note_loaded(int64_t num_bytes) { loaded_bytes_ += num_bytes; }
  // Returns a copy for streaming memory of a tensor on the IPU.
  at::Tensor store(const at::Tensor& local) {
    stored_bytes_ += static_cast<int64_t>(local.nbytes());
    return local.clone();
  }

  int64_t loaded_bytes() const { return loaded_bytes_; }
  int64_t stored_bytes() const { return stored_bytes_; }

 private:
  std::atomic<int64_t> loaded_bytes_ = 0;
  std::atomic<int64_t> stored_bytes_ = 0;
};

}  // namespace poptorch_emu
