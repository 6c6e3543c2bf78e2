#include "runtime/memory/remote.h"

namespace poptorch_emu {

at::Tensor RemoteTraffic::load(const at::Tensor& remote) {
  loaded_bytes_ += static_cast<int64_t>(remote.nbytes());
  return remote.clone();
}

at::Tensor RemoteTraffic::store(const at::Tensor& local) {
  stored_bytes_ += static_cast<int64_t>(local.nbytes());
  return local.clone();
}

}  // namespace poptorch_emu
