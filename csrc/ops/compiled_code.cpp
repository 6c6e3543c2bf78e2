// The operator `compiled_code`: runs what TorchInductor made of several operations, from a library
// that it left on disk.

#include <ATen/core/Tensor.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

namespace poptorch_emu {
namespace {

using Runner = torch::inductor::AOTIModelContainerRunnerCpu;

// Returns what runs the library at `path`, loaded at the first use. Any number of threads may use
// it at once; one beyond the number of cores waits for another.
Runner& runner_of(const std::string& path) {
  // Never destroyed: libraries must outlast the threads that run their code.
  static auto& runners = *new std::unordered_map<std::string, std::unique_ptr<Runner>>;
  static auto& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Runner>& runner = runners[path];
  if (runner == nullptr) {
    const size_t num_models = std::max(1U, std::thread::hardware_concurrency());
    runner = std::make_unique<Runner>(path, num_models);
  }
  return *runner;
}

std::vector<at::Tensor> compiled_code(at::TensorList inputs, std::string_view path) {
  std::vector<at::Tensor> contiguous;
  contiguous.reserve(inputs.size());
  for (const at::Tensor& input : inputs) contiguous.push_back(input.contiguous());
  return runner_of(std::string(path)).run(contiguous);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(poptorch_emu, m) {
  m.def("compiled_code(Tensor[] inputs, str path) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(poptorch_emu, CPU, m) { m.impl("compiled_code", compiled_code); }

}  // namespace poptorch_emu
