// The Python module: the executor, the translation of errors, and the bindings of other files. Only
// the files `bindings*` use Python.

#include "bindings.h"

#include <ATen/ops/stack.h>
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "common/autograd_listing.h"
#include "common/errors.h"
#include "common/product_kernel.h"
#include "common/shared_loops.h"
#include "common/sharing.h"
#include "common/vectors.h"
#include "metadata/rules.h"
#include "runtime/executor/executor.h"
#include "runtime/scheduling/worker_choice.h"

namespace py = pybind11;

namespace poptorch_emu {
namespace {

// Wraps a Python function so that any thread can call it without holding the GIL.
HostFunction call_python(py::function function) {
  const std::shared_ptr<py::function> shared(new py::function(std::move(function)),
                                             [](py::function* owned) {
                                               const py::gil_scoped_acquire gil;
                                               delete owned;
                                             });
  return [shared](std::vector<at::Tensor> inputs) {
    const py::gil_scoped_acquire gil;
    try {
      return (*shared)(std::move(inputs)).cast<std::vector<at::Tensor>>();
    } catch (const py::error_already_set& error) {
      throw Error(error.what());
    }
  };
}

// Runs Python's signal handlers, for example for Ctrl-C; they act on the main thread only.
void handle_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Fills `place` with the stack of `samples` and returns true if types and shapes match; otherwise
// returns false without a change. A data loader uses it for batches. The samples must be plain,
// dense tensors on the host without an autograd graph. Like PyTorch, it copies without the GIL.
bool stack_into(const py::sequence& samples, at::Tensor place) {
  if (samples.size() == 0 || place.dim() == 0 ||
      static_cast<int64_t>(samples.size()) != place.size(0)) {
    return false;
  }
  const at::IntArrayRef shape = place.sizes().slice(1);
  std::vector<at::Tensor> tensors;
  tensors.reserve(samples.size());
  for (const py::handle sample : samples) {
    if (!THPVariable_CheckExact(sample.ptr())) return false;
    const at::Tensor& tensor = tensors.emplace_back(THPVariable_Unpack(sample.ptr()));
    if (tensor.layout() != at::kStrided || !tensor.is_cpu() || tensor.requires_grad() ||
        tensor.scalar_type() != place.scalar_type() || tensor.sizes() != shape) {
      return false;
    }
  }
  const py::gil_scoped_release no_gil;
  at::stack_out(place, tensors);
  return true;
}

// Returns birth, death, bytes and offset of each piece of a segment's memory after its first run.
std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> memory_plan(Executor& executor,
                                                                        int64_t segment) {
  std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> pieces;
  const auto plan = executor.state().tensors.plan({segment});
  if (plan == nullptr) return pieces;
  for (const auto& [life, offset] : plan->pieces) {
    pieces.emplace_back(life.birth, life.death, life.num_bytes, offset);
  }
  return pieces;
}

// Returns for each link the maximum number of items, and of their bytes, that a replica held.
std::vector<std::pair<int64_t, int64_t>> link_peaks(const Executor& executor) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const LinkPeak& peak : executor.link_peaks()) pairs.emplace_back(peak.items, peak.bytes);
  return pairs;
}

// Returns the events as a NumPy array with one int64 row for each, because converting a tensor to
// an array would take three times as long after each profiled call.
py::array_t<int64_t> as_table(std::vector<Event> events) {
  static_assert(sizeof(Event) == 8 * sizeof(int64_t));
  auto owned = std::make_unique<std::vector<Event>>(std::move(events));
  const auto rows = static_cast<py::ssize_t>(owned->size());
  auto* const first = reinterpret_cast<int64_t*>(owned->data());
  const py::capsule owner(owned.release(),
                          [](void* vector) { delete static_cast<std::vector<Event>*>(vector); });
  return py::array_t<int64_t>({rows, py::ssize_t{8}}, first, owner);
}

// Binds the ring that exchanges tensors with the replicas of other processes.
void bind_ring(py::module_& m) {
  py::class_<Ring, std::shared_ptr<Ring>>(m, "Ring")
      .def(py::init([](const std::string& group_name, int64_t model, double timeout_seconds) {
             const auto milliseconds = static_cast<int64_t>(1e3 * timeout_seconds);
             return std::make_shared<Ring>(group_name, model,
                                           std::chrono::milliseconds(milliseconds));
           }),
           py::arg("group_name"), py::arg("model"), py::arg("timeout_seconds"))
      .def("all_reduce", &Ring::all_reduce, py::arg("number"), py::arg("tensors"),
           py::call_guard<py::gil_scoped_release>())
      .def("reduce_scatter", &Ring::reduce_scatter, py::arg("number"), py::arg("tensors"),
           py::call_guard<py::gil_scoped_release>())
      .def("all_gather", &Ring::all_gather, py::arg("number"), py::arg("tensors"),
           py::arg("replicas_per_process"), py::call_guard<py::gil_scoped_release>())
      .def(
          "cancel", [](Ring& ring, const std::string& reason) { ring.peers().cancel(reason); },
          py::call_guard<py::gil_scoped_release>())
      .def("lost_process", [](Ring& ring) { return ring.peers().lost_process(); })
      .def("seconds", &Ring::seconds);
}

void bind_stream(py::class_<Executor>& executor) {
  executor
      .def("begin_stream", &Executor::begin_stream, py::arg("max_unread"),
           py::arg("micro_batches_per_step"), py::arg("num_outputs"))
      .def("take_result", &Executor::take_result, py::call_guard<py::gil_scoped_release>())
      .def("take_results", &Executor::take_results, py::call_guard<py::gil_scoped_release>())
      .def("wait_for_results", &Executor::wait_for_results, py::arg("linger_microseconds"),
           py::call_guard<py::gil_scoped_release>())
      .def("end_stream", &Executor::end_stream, py::call_guard<py::gil_scoped_release>());
}

void bind_executor(py::module_& m) {
  py::class_<Executor> executor(m, "Executor");
  bind_stream(executor);
  executor
      .def(
          py::init([](std::shared_ptr<Program> program, int64_t num_replicas, int64_t num_workers,
                      int64_t num_intra_op_threads, std::vector<int64_t> input_groups,
                      int64_t first_replica, std::shared_ptr<Ring> ring, bool follows_lists) {
            return std::make_unique<Executor>(
                std::move(program), ExecutorOptions{num_replicas, num_workers, num_intra_op_threads,
                                                    std::move(input_groups), first_replica,
                                                    std::move(ring), follows_lists});
          }),
          py::arg("program"), py::arg("num_replicas"), py::arg("num_workers"),
          py::arg("num_intra_op_threads"), py::arg("input_group_of_replica"),
          py::arg("first_replica") = 0, py::arg("ring") = nullptr, py::arg("follows_lists") = false)
      .def("write_variable",
           [](Executor& e, int64_t id, int64_t replica, const at::Tensor& value) {
             e.state().memory.write({id}, replica, value);
           })
      .def("read_variable", [](Executor& e, int64_t id,
                               int64_t replica) { return e.state().memory.read({id}, replica); })
      .def("set_scalar",
           [](Executor& e, int64_t id, double value) { e.state().memory.set_scalar({id}, value); })
      .def("rng_state", [](Executor& e) { return e.random_state().get(); })
      .def("set_rng_state",
           [](Executor& e, int64_t seed, int64_t counter) { e.random_state().set(seed, counter); })
      .def("set_host_function",
           [](Executor& e, std::string name, py::function function) {
             e.host_calls().add_function(std::move(name), call_python(std::move(function)));
           })
      .def("look_for_signals",
           [](Executor& e) { e.host_calls().set_interrupt_check(handle_signals); })
      .def("run", &Executor::run, py::call_guard<py::gil_scoped_release>())
      .def("set_tracing", [](Executor& e, bool is_tracing) { e.events().set_on(is_tracing); })
      .def("take_events", [](Executor& e) { return as_table(e.events().take()); })
      .def("variable_bytes", [](Executor& e) { return e.state().memory.variable_bytes(); })
      .def("replica_bytes",
           [](Executor& e, int64_t replica) { return e.state().memory.replica_bytes(replica); })
      .def("peak_accumulator_bytes", &Executor::peak_accumulator_bytes)
      .def("arena_bytes", [](Executor& e) { return e.state().tensors.arena_bytes(); })
      .def("pool_bytes", [](Executor& e) { return e.state().tensors.pool_bytes(); })
      .def("memory_plan", &memory_plan)
      .def("remote_loaded_bytes", [](Executor& e) { return e.state().remote.loaded_bytes(); })
      .def("remote_stored_bytes", [](Executor& e) { return e.state().remote.stored_bytes(); })
      .def("link_peaks", &link_peaks)
      .def("input_spans", [](Executor& e) { return e.transfer_times().last()->inputs; })
      .def("output_spans", [](Executor& e) { return e.transfer_times().last()->outputs; });
}

// Binds the kernels for products, and the vector width on which their choice depends.
void bind_kernels(py::module_& m) {
  m.def("vector_width", &vectors::width);
  py::enum_<ProductKernel>(m, "ProductKernel")
      .value("LIBRARY", ProductKernel::kLibrary)
      .value("SMALL", ProductKernel::kSmall)
      .value("PANELS", ProductKernel::kPanels);
}

// Binds the choice of workers, for tests that pass made-up durations.
void bind_worker_choice(py::module_& m) {
  m.def("set_shares_work", &set_shares_work);
  using Among = WorkerChoice::Among;
  py::enum_<Among>(m, "ChoiceAmong")
      .value("NOTHING", Among::kNothing)
      .value("SHORT_ACTIONS", Among::kShortActions)
      .value("ALL_ACTIONS", Among::kAllActions);
  py::class_<WorkerChoice>(m, "WorkerChoice")
      .def(py::init<Among>(), py::arg("among"))
      .def("is_alone", &WorkerChoice::is_alone)
      .def("note", &WorkerChoice::note, py::arg("window_ns"), py::arg("action_ns"));
}

void bind_shared_loops(py::module_& m) {
  using Part = std::function<void(int64_t, int64_t)>;
  py::class_<SharedLoops>(m, "SharedLoops")
      .def(py::init<std::function<void()>>(), py::arg("wake"))
      .def(
          "run",
          [](SharedLoops& loops, int64_t count, int64_t per_part, const Part& part) {
            loops.run(count, per_part, part);
          },
          py::arg("count"), py::arg("per_part"), py::arg("part"),
          py::call_guard<py::gil_scoped_release>())
      .def("help", &SharedLoops::help, py::call_guard<py::gil_scoped_release>());
}

void bind_autograd(py::module_& m) {
  m.def("list_autograd",
        [](const at::Tensor& root, const std::vector<at::Tensor>& leaves, int64_t first_sequence) {
          const AutogradListing listing = list_autograd(root, leaves, first_sequence);
          return py::make_tuple(listing.lines, listing.is_opaque);
        });
}

void bind_metadata_rules(py::module_& m) {
  m.def("define_metadata_rules", &metadata::define_rules);
  m.def("metadata_rule_names", [] {
    std::set<std::string> names;
    for (const auto& [name, rule] : metadata::all_rules()) names.insert(name);
    return names;
  });
}

void bind_loader(py::module_& m) { m.def("stack_into", &stack_into); }

void translate_errors() {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const py::object make = py::module_::import("poptorch_emu.errors").attr("compiler_error");
      // A damaged program may put any bytes into an error message.
      const std::string& text = error.message();
      const auto message = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
          text.data(), static_cast<py::ssize_t>(text.size()), "backslashreplace"));
      const py::object exception = make(message, "poptorch_cpp_error");
      PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
    }
  });
}

}  // namespace
}  // namespace poptorch_emu

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The C++ engine of poptorch_emu: programs and their execution on virtual IPUs.";
  // The classes report `poptorch_emu._C` as their module, whatever the file name of the engine.
  m.attr("__name__") = "poptorch_emu._C";
  poptorch_emu::translate_errors();
  poptorch_emu::bind_instructions(m);
  poptorch_emu::bind_program(m);
  poptorch_emu::bind_ring(m);
  poptorch_emu::bind_executor(m);
  poptorch_emu::bind_shared_loops(m);
  poptorch_emu::bind_autograd(m);
  poptorch_emu::bind_kernels(m);
  poptorch_emu::bind_worker_choice(m);
  poptorch_emu::bind_metadata_rules(m);
  poptorch_emu::bind_loader(m);
  poptorch_emu::bind_guards(m);
  m.def(
      "plan_offsets",
      [](const std::vector<std::tuple<int64_t, int64_t, int64_t>>& pieces) {
        std::vector<poptorch_emu::Allocation> allocations;
        for (const auto& [birth, death, num_bytes] : pieces) {
          allocations.push_back({birth, death, num_bytes});
        }
        poptorch_emu::OffsetPlan plan = poptorch_emu::plan_offsets(allocations);
        return std::make_pair(std::move(plan.offsets), plan.num_bytes);
      },
      "Places pieces (birth, death, bytes) in one block: the offset of each, and the bytes of "
      "all.");
}
