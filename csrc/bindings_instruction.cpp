// Conversion of instructions and their arguments from Python.

#include <ATen/ScalarOps.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "common/errors.h"

namespace py = pybind11;

namespace torch::jit {
// Declared in <torch/csrc/jit/python/pybind_utils.h>, which takes three times as long to compile as
// the headers above.
TORCH_PYTHON_API c10::IValue toIValue(py::handle object, const c10::TypePtr& type,
                                      std::optional<int32_t> fixed_length);
}  // namespace torch::jit

namespace poptorch_emu {
namespace {

// The Python class of a register, for arguments of instructions.
struct PyRegister {
  int64_t index;
};

// Adds one Python argument to an instruction. A register or a list of registers becomes a slot; any
// other value becomes a constant of the schema's type.
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
    // A Python number in place of a tensor does not take part in type promotion.
    instruction.arguments[index] = at::native::wrapped_scalar_tensor(
        torch::jit::toIValue(value, c10::NumberType::get(), {}).toScalar());
    return;
  }
  instruction.arguments[index] = torch::jit::toIValue(value, argument.type(), {});
}

// Rejects arguments that the schema does not have.
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

}  // namespace

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
  instruction.outputs = registers(outputs);
  instruction.dies = registers(dies);
  return instruction;
}

std::vector<RegisterId> registers(const std::vector<int64_t>& indices) {
  std::vector<RegisterId> result;
  for (int64_t index : indices) result.push_back({index});
  return result;
}

void bind_instructions(py::module_& m) {
  py::class_<PyRegister>(m, "Register").def(py::init<int64_t>(), py::arg("index"));
  py::class_<Debug>(m, "Debug")
      .def(py::init<std::string, std::string, int64_t, std::string, std::string>(), py::arg("node"),
           py::arg("block") = "", py::arg("stage") = 0, py::arg("module") = "",
           py::arg("source") = "");
  bind_body(m);
}

}  // namespace poptorch_emu
