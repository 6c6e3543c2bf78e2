// The builder of programs, for Python.

#include <ATen/ScalarOps.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "common/errors.h"
#include "program/program.h"
#include "program/serialize.h"
#include "runtime/scheduling/micro_batch_order.h"

namespace py = pybind11;

namespace torch::jit {
// Of <torch/csrc/jit/python/pybind_utils.h>, which takes three times as long to compile as the
// headers above.
TORCH_PYTHON_API c10::IValue toIValue(py::handle object, const c10::TypePtr& type,
                                      std::optional<int32_t> fixed_length);
}  // namespace torch::jit

namespace poptorch_emu {
namespace {

// In Python an argument that is a register.
struct PyRegister {
  int64_t index;
};

// Puts one Python argument into an instruction: a register or list of registers becomes a slot, any
// other value a constant of the schema's type.
void set_argument(Instruction& instruction, size_t index, const py::handle& value) {
  const c10::Argument& argument = instruction.op.schema().arguments().at(index);
  const auto position = static_cast<int64_t>(index);
  if (py::isinstance<PyRegister>(value)) {
    instruction.slots.push_back({position, {value.cast<PyRegister>().index}});
    return;
  }
  const bool is_list = py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value);
  if (is_list) {
    ListSlot slot{position, {}, false};
    bool has_register = false;
    bool has_constant = false;
    for (const py::handle item : value) {
      const bool is_register = py::isinstance<PyRegister>(item);
      has_register |= is_register;
      if (!is_register && !item.is_none()) has_constant = true;
      slot.sources.push_back({is_register ? item.cast<PyRegister>().index : -1});
    }
    const std::string type = argument.type()->str();
    slot.is_optional = type.find("Tensor?[]") != std::string::npos ||
                       type.find("Optional[Tensor]") != std::string::npos;
    if (has_register) {
      if (has_constant) {
        throw Error("Argument '" + argument.name() + "' of " + instruction.debug.node +
                    " mixes registers and constants in a list; load the constants first.");
      }
      instruction.list_slots.push_back(std::move(slot));
      return;
    }
  }
  const bool takes_tensor = argument.type()->kind() == c10::TypeKind::TensorType;
  if (takes_tensor && !value.is_none() && !THPVariable_Check(value.ptr())) {
    // A Python number beside a tensor: it does not take part in type promotion.
    instruction.arguments[index] = at::native::wrapped_scalar_tensor(
        torch::jit::toIValue(value, c10::NumberType::get(), {}).toScalar());
    return;
  }
  instruction.arguments[index] = torch::jit::toIValue(value, argument.type(), {});
}

// Refuses arguments that the schema does not have.
void check_names(const c10::FunctionSchema& schema, const py::list& args, const py::dict& kwargs,
                 const std::string& node) {
  if (args.size() > schema.arguments().size()) {
    throw Error("'" + node + "' gives " + std::to_string(args.size()) + " arguments to " +
                schema.name() + ", which takes " + std::to_string(schema.arguments().size()) + ".");
  }
  for (const auto& [key, value] : kwargs) {
    if (!schema.argumentIndexWithName(key.cast<std::string>())) {
      throw Error("'" + node + "' names argument '" + key.cast<std::string>() + "', which " +
                  schema.name() + " does not have.");
    }
  }
}

Instruction make_instruction(const std::string& name, const std::string& overload,
                             const py::list& args, const py::dict& kwargs,
                             const std::vector<int64_t>& outputs, const std::vector<int64_t>& dies,
                             Debug debug, std::vector<Body> bodies) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  Instruction instruction{
      op, {}, {}, {}, {}, {}, std::move(debug), control_of(op), std::move(bodies)};
  const auto& schema = instruction.op.schema();
  instruction.arguments.resize(schema.arguments().size());
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (i < args.size()) {
      set_argument(instruction, i, args[i]);
    } else if (kwargs.contains(argument.name())) {
      set_argument(instruction, i, kwargs[argument.name().c_str()]);
    } else if (argument.default_value()) {
      instruction.arguments[i] = *argument.default_value();
    } else {
      throw Error("'" + instruction.debug.node + "' gives no value to argument '" +
                  argument.name() + "' of " + name + ".");
    }
  }
  check_names(schema, args, kwargs, instruction.debug.node);
  for (int64_t output : outputs) instruction.outputs.push_back({output});
  for (int64_t dead : dies) instruction.dies.push_back({dead});
  return instruction;
}

std::vector<RegisterId> registers(const std::vector<int64_t>& indices) {
  std::vector<RegisterId> result;
  for (int64_t index : indices) result.push_back({index});
  return result;
}

void note_register(Segment& segment, int64_t index) {
  segment.num_registers = std::max(segment.num_registers, index + 1);
}

// Adds to a table and returns the index.
template <typename Table, typename Entry>
int64_t append(Table& table, Entry entry) {
  table.push_back(std::move(entry));
  return static_cast<int64_t>(table.size()) - 1;
}

void add_load(Program& program, int64_t segment, int64_t target, LoadSource source) {
  Segment& owner = program.at(SegmentId{segment});
  note_register(owner, target);
  owner.loads.push_back({{target}, source});
}

void add_store(Program& program, int64_t segment, int64_t source, StoreTarget target) {
  program.at(SegmentId{segment}).stores.push_back({{source}, target});
}

void add_instruction(Program& program, int64_t segment, const std::string& name,
                     const std::string& overload, const py::list& args, const py::dict& kwargs,
                     const std::vector<int64_t>& outputs, const std::vector<int64_t>& dies,
                     Debug debug, std::vector<Body> bodies) {
  Segment& owner = program.at(SegmentId{segment});
  for (int64_t output : outputs) note_register(owner, output);
  owner.instructions.push_back(make_instruction(name, overload, args, kwargs, outputs, dies,
                                                std::move(debug), std::move(bodies)));
}

void bind_body(py::module_& m) {
  py::class_<Body>(m, "Body")
      .def(py::init([](std::string name, int64_t num_registers,
                       const std::vector<int64_t>& parameters, int64_t iteration,
                       const std::vector<int64_t>& results) {
             return Body{std::move(name),   num_registers, registers(parameters), {iteration}, {},
                         registers(results)};
           }),
           py::arg("name"), py::arg("num_registers"), py::arg("parameters"), py::arg("iteration"),
           py::arg("results"))
      .def("add_instruction",
           [](Body& body, const std::string& name, const std::string& overload,
              const py::list& args, const py::dict& kwargs, const std::vector<int64_t>& outputs,
              const std::vector<int64_t>& dies, Debug debug, std::vector<Body> bodies) {
             body.instructions.push_back(make_instruction(
                 name, overload, args, kwargs, outputs, dies, std::move(debug), std::move(bodies)));
           });
}

int64_t add_link(Program& program, int64_t producer, const std::vector<int64_t>& sources,
                 int64_t consumer, const std::vector<int64_t>& targets, int64_t capacity) {
  for (int64_t target : targets) note_register(program.at(SegmentId{consumer}), target);
  const int64_t id =
      append(program.links,
             Link{{producer}, registers(sources), {consumer}, registers(targets), capacity});
  program.at(SegmentId{producer}).outgoing.push_back({id});
  program.at(SegmentId{consumer}).incoming.push_back({id});
  return id;
}

void set_schedule(Program& program,
                  const std::vector<std::vector<std::pair<int64_t, int64_t>>>& actions,
                  int64_t micro_batches_per_window) {
  program.schedule.clear();
  for (const auto& list : actions) {
    std::vector<Action> row;
    for (const auto& [segment, micro_batch] : list) row.push_back({{segment}, micro_batch});
    program.schedule.push_back(std::move(row));
  }
  program.micro_batches_per_window = micro_batches_per_window;
}

using ProgramClass = py::class_<Program, std::shared_ptr<Program>>;

// What a program is made of besides its code.
void bind_tables(ProgramClass& program) {
  program
      .def("add_constant",
           [](Program& p, const at::Tensor& value) {
             return append(p.constants, value.detach().clone(at::MemoryFormat::Contiguous));
           })
      .def("add_variable",
           [](Program& p, std::string name, std::vector<int64_t> shape, at::ScalarType dtype,
              bool is_per_replica) {
             return append(p.variables,
                           Variable{std::move(name), std::move(shape), dtype, is_per_replica});
           })
      .def("group_variable",
           [](Program& p, int64_t id, std::vector<int64_t> groups) {
             p.variables.at(id).groups.of_replica = std::move(groups);
           })
      .def("shard_variable", [](Program& p, int64_t id) { p.variables.at(id).is_sharded = true; })
      .def("add_scalar",
           [](Program& p, std::string name, double value) {
             return append(p.scalars, Scalar{std::move(name), value});
           })
      .def("add_accumulator",
           [](Program& p, std::string name, at::ScalarType dtype, bool is_running_mean) {
             return append(p.accumulators, Accumulator{std::move(name), dtype, is_running_mean});
           })
      .def("group_accumulator",
           [](Program& p, int64_t id, std::vector<int64_t> groups) {
             p.accumulators.at(id).groups.of_replica = std::move(groups);
           })
      .def("shard_accumulator",
           [](Program& p, int64_t id) { p.accumulators.at(id).is_sharded = true; })
      .def("add_input", [](Program& p, std::string name, bool is_batched) {
        return append(p.inputs, Input{std::move(name), is_batched});
      });
}

// Segments, the replicas that run them, and what replicas exchange.
void bind_segments(ProgramClass& program) {
  program
      .def("add_segment",
           [](Program& p, std::string name, int64_t ipu, SegmentKind kind) {
             Segment segment;
             segment.name = std::move(name);
             segment.ipu = ipu;
             segment.kind = kind;
             return append(p.segments, std::move(segment));
           })
      .def("set_lifetime",
           [](Program& p, int64_t s, Lifetime lifetime) { p.at(SegmentId{s}).lifetime = lifetime; })
      .def("set_runners",
           [](Program& p, int64_t s, std::vector<int64_t> runners) {
             p.at(SegmentId{s}).runners = std::move(runners);
           })
      .def("set_seen_outside",
           [](Program& p, int64_t s) { p.at(SegmentId{s}).is_seen_outside = true; })
      .def("reduce",
           [](Program& p, int64_t s, int64_t id) { p.at(SegmentId{s}).reductions.push_back({id}); })
      .def("exchange",
           [](Program& p, int64_t s, int64_t id) { p.at(SegmentId{s}).exchanges.push_back({id}); })
      .def("scatter",
           [](Program& p, int64_t s, int64_t id) { p.at(SegmentId{s}).scatters.push_back({id}); })
      .def("gather_accumulator",
           [](Program& p, int64_t s, int64_t id) {
             p.at(SegmentId{s}).gathered_sums.push_back({id});
           })
      .def("gather_variable",
           [](Program& p, int64_t s, int64_t id) { p.at(SegmentId{s}).gathers.push_back({id}); });
}

// What fills registers before a segment runs.
void bind_loads(ProgramClass& program) {
  program
      .def("load_input",
           [](Program& p, int64_t s, int64_t r, int64_t id) { add_load(p, s, r, LoadInput{{id}}); })
      .def("load_variable", [](Program& p, int64_t s, int64_t r,
                               int64_t id) { add_load(p, s, r, LoadVariable{{id}}); })
      .def("load_variable_shard", [](Program& p, int64_t s, int64_t r,
                                     int64_t id) { add_load(p, s, r, LoadVariable{{id}, true}); })
      .def("load_constant", [](Program& p, int64_t s, int64_t r,
                               int64_t id) { add_load(p, s, r, LoadConstant{{id}}); })
      .def("load_scalar", [](Program& p, int64_t s, int64_t r,
                             int64_t id) { add_load(p, s, r, LoadScalar{{id}}); })
      .def("load_accumulator", [](Program& p, int64_t s, int64_t r,
                                  int64_t id) { add_load(p, s, r, LoadAccumulator{{id}}); })
      .def("load_accumulator_shard",
           [](Program& p, int64_t s, int64_t r, int64_t id) {
             add_load(p, s, r, LoadAccumulator{{id}, true});
           })
      .def("load_variable_rows",
           [](Program& p, int64_t s, int64_t r, int64_t id, int64_t accumulator) {
             add_load(p, s, r, LoadVariableRows{{id}, {accumulator}});
           })
      .def("load_accumulator_rows",
           [](Program& p, int64_t s, int64_t r, int64_t id) {
             add_load(p, s, r, LoadAccumulatorRows{{id}});
           })
      .def("load_prepared",
           [](Program& p, int64_t s, int64_t r, int64_t preparation, int64_t source) {
             add_load(p, s, r, LoadPrepared{{preparation}, {source}});
           })
      .def("load_rng", [](Program& p, int64_t s, int64_t r) { add_load(p, s, r, LoadRng{}); });
}

// Instructions, and what becomes of their results.
void bind_code(ProgramClass& program) {
  program
      .def("add_instruction", &add_instruction, py::arg("segment"), py::arg("operator"),
           py::arg("overload"), py::arg("args"), py::arg("kwargs"), py::arg("outputs"),
           py::arg("dies"), py::arg("debug"), py::arg("bodies") = std::vector<Body>())
      .def("store_output",
           [](Program& p, int64_t s, int64_t r, OutputMode mode, int64_t period) {
             const int64_t id = append(p.outputs, Output{mode, period});
             add_store(p, s, r, StoreOutput{{id}});
             return id;
           })
      .def("store_variable", [](Program& p, int64_t s, int64_t r,
                                int64_t id) { add_store(p, s, r, StoreVariable{{id}}); })
      .def("store_variable_shard",
           [](Program& p, int64_t s, int64_t r, int64_t id) {
             add_store(p, s, r, StoreVariable{{id}, true});
           })
      .def("store_variable_rows",
           [](Program& p, int64_t s, int64_t r, int64_t id, int64_t accumulator) {
             add_store(p, s, r, StoreVariableRows{{id}, {accumulator}});
           })
      .def("accumulate", [](Program& p, int64_t s, int64_t r,
                            int64_t id) { add_store(p, s, r, Accumulate{{id}}); })
      .def("accumulate_rows", [](Program& p, int64_t s, int64_t r, int64_t id, int64_t indices,
                                 int64_t num_rows, int64_t padding_index) {
        add_store(p, s, r, AccumulateRows{{id}, {indices}, num_rows, padding_index});
      });
}

// What crosses between segments, where it lives, and when each segment runs.
void bind_plan(ProgramClass& program) {
  program.def("add_link", &add_link)
      .def("set_remote_variable",
           [](Program& p, int64_t id) { p.variables.at(id).is_remote = true; })
      .def("set_remote_accumulator",
           [](Program& p, int64_t id) { p.accumulators.at(id).is_remote = true; })
      .def("set_remote_link", [](Program& p, int64_t id) { p.links.at(id).is_remote = true; })
      .def("shard_link", [](Program& p, int64_t id) { p.links.at(id).is_sharded = true; })
      .def("set_schedule", &set_schedule)
      .def("set_numerics", [](Program& p, bool checks_floating_point, bool rounds_stochastically) {
        p.numerics = {checks_floating_point, rounds_stochastically};
      });
}

// The finished program: checked, shown, written and read.
void bind_whole(ProgramClass& program) {
  program
      .def("validate",
           [](Program& p) {
             p.find_last_uses();
             p.validate();
           })
      .def("has_host_calls", &Program::has_host_calls)
      .def("num_independent_micro_batches",
           [](const Program& p) {
             return micro_batch_order(p).path.empty() ? 1 : p.micro_batches_per_window;
           })
      .def("serialize", [](const Program& p) { return py::bytes(serialize(p)); })
      .def_static("deserialize",
                  [](const py::bytes& bytes) {
                    return std::make_shared<Program>(deserialize(std::string_view(bytes)));
                  })
      .def("text", &Program::text)
      .def("__str__", &Program::text);
}

}  // namespace

void bind_program(py::module_& m) {
  py::class_<PyRegister>(m, "Register").def(py::init<int64_t>(), py::arg("index"));
  py::class_<Debug>(m, "Debug")
      .def(py::init<std::string, std::string, int64_t, std::string, std::string>(), py::arg("node"),
           py::arg("block") = "", py::arg("stage") = 0, py::arg("module") = "",
           py::arg("source") = "");
  bind_body(m);
  py::enum_<SegmentKind>(m, "SegmentKind")
      .value("MICRO_BATCH", SegmentKind::kMicroBatch)
      .value("WINDOW", SegmentKind::kWindow)
      .value("PREPARATION", SegmentKind::kPreparation);
  py::enum_<Lifetime>(m, "Lifetime")
      .value("CALL", Lifetime::kCall)
      .value("WINDOW", Lifetime::kWindow);
  py::enum_<OutputMode>(m, "OutputMode")
      .value("FINAL", OutputMode::kFinal)
      .value("EVERY_N", OutputMode::kEveryN)
      .value("ALL", OutputMode::kAll)
      .value("SUM", OutputMode::kSum);

  ProgramClass program(m, "Program");
  program.def(py::init<>());
  bind_tables(program);
  bind_segments(program);
  bind_loads(program);
  bind_code(program);
  bind_plan(program);
  bind_whole(program);
}

}  // namespace poptorch_emu
