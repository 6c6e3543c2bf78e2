// Python bindings of the builder of programs.

#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "program/serialize.h"

namespace py = pybind11;

namespace poptorch_emu {
namespace {

void note_register(Segment& segment, int64_t index) {
  segment.num_registers = std::max(segment.num_registers, index + 1);
}

// Adds an entry to a table and returns its index.
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
                  int64_t micro_batches_per_window, int64_t joined) {
  program.schedule.clear();
  for (const auto& list : actions) {
    std::vector<Action> row;
    for (const auto& [segment, micro_batch] : list) row.push_back({{segment}, micro_batch});
    program.schedule.push_back(std::move(row));
  }
  program.micro_batches_per_window = micro_batches_per_window;
  program.joined = joined;
}

using ProgramClass = py::class_<Program, std::shared_ptr<Program>>;

// Binds functions that fill the tables of a program.
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

// Binds functions for segments, the replicas that run them, and the exchanges between replicas.
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
           [](Program& p, int64_t s, int64_t id) { p.at(SegmentId{s}).gathers.push_back({id}); })
      .def("relay", [](Program& p, int64_t s, int64_t segment, int64_t index) {
        p.at(SegmentId{s}).relayed = {{segment}, index};
      });
}

// Binds functions for loads, which fill registers before a segment runs.
void bind_loads(ProgramClass& program) {
  const auto bind = [&](const char* name, auto make_source) {
    program.def(name, [make_source](Program& p, int64_t s, int64_t r, int64_t id) {
      add_load(p, s, r, make_source(id));
    });
  };
  bind("load_input", [](int64_t id) { return LoadInput{{id}}; });
  bind("load_variable", [](int64_t id) { return LoadVariable{{id}}; });
  bind("load_variable_shard", [](int64_t id) { return LoadVariable{{id}, true}; });
  bind("load_constant", [](int64_t id) { return LoadConstant{{id}}; });
  bind("load_scalar", [](int64_t id) { return LoadScalar{{id}}; });
  bind("load_accumulator", [](int64_t id) { return LoadAccumulator{{id}}; });
  bind("load_accumulator_shard", [](int64_t id) { return LoadAccumulator{{id}, true}; });
  bind("load_accumulator_rows", [](int64_t id) { return LoadAccumulatorRows{{id}}; });
  program
      .def("load_variable_rows",
           [](Program& p, int64_t s, int64_t r, int64_t id, int64_t accumulator) {
             add_load(p, s, r, LoadVariableRows{{id}, {accumulator}});
           })
      .def("load_prepared",
           [](Program& p, int64_t s, int64_t r, int64_t preparation, int64_t source) {
             add_load(p, s, r, LoadPrepared{{preparation}, {source}});
           })
      .def(
          "load_rng",
          [](Program& p, int64_t s, int64_t r, int64_t piece) {
            add_load(p, s, r, LoadRng{piece});
          },
          py::arg("segment"), py::arg("register"), py::arg("piece") = 0);
}

// Binds functions for instructions, and for stores of their results.
void bind_code(ProgramClass& program) {
  program
      .def("add_instruction", &add_instruction, py::arg("segment"), py::arg("operator"),
           py::arg("overload"), py::arg("args"), py::arg("kwargs"), py::arg("outputs"),
           py::arg("dies"), py::arg("debug"), py::arg("bodies") = std::vector<Body>())
      .def(
          "store_output",
          [](Program& p, int64_t s, int64_t r, OutputMode mode, int64_t period,
             int64_t num_pieces) {
            const int64_t id = append(p.outputs, Output{mode, period});
            add_store(p, s, r, StoreOutput{{id}, 0, num_pieces});
            return id;
          },
          py::arg("segment"), py::arg("register"), py::arg("mode"), py::arg("period"),
          py::arg("num_pieces") = 1)
      .def("store_piece", [](Program& p, int64_t s, int64_t r, int64_t id,
                             int64_t piece) { add_store(p, s, r, StoreOutput{{id}, piece}); })
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

// Binds functions for links between segments, places in streaming memory, and the schedule.
void bind_plan(ProgramClass& program) {
  program.def("add_link", &add_link)
      .def("set_remote_variable",
           [](Program& p, int64_t id) { p.variables.at(id).is_remote = true; })
      .def("set_remote_accumulator",
           [](Program& p, int64_t id) { p.accumulators.at(id).is_remote = true; })
      .def("set_remote_link", [](Program& p, int64_t id) { p.links.at(id).is_remote = true; })
      .def("shard_link", [](Program& p, int64_t id) { p.links.at(id).is_sharded = true; })
      .def("set_schedule", &set_schedule, py::arg("actions"), py::arg("micro_batches_per_window"),
           py::arg("joined") = 1)
      .def("set_path",
           [](Program& p, const std::vector<std::pair<int64_t, Turns>>& path) {
             p.path.clear();
             for (const auto& [segment, turns] : path) {
               p.path.push_back({segment});
               p.at(SegmentId{segment}).turns = turns;
             }
           })
      .def("set_numerics", [](Program& p, bool checks_floating_point, bool rounds_stochastically) {
        p.numerics = {checks_floating_point, rounds_stochastically};
      });
}

// Binds functions for a finished program: checks, text and file format.
void bind_whole(ProgramClass& program) {
  program
      .def("validate",
           [](Program& p) {
             p.find_last_uses();
             p.validate();
           })
      .def("num_independent_micro_batches",
           [](const Program& p) { return p.path.empty() ? 1 : p.runs_per_window(); })
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
  py::enum_<SegmentKind>(m, "SegmentKind")
      .value("MICRO_BATCH", SegmentKind::kMicroBatch)
      .value("WINDOW", SegmentKind::kWindow)
      .value("PREPARATION", SegmentKind::kPreparation);
  py::enum_<Lifetime>(m, "Lifetime")
      .value("CALL", Lifetime::kCall)
      .value("WINDOW", Lifetime::kWindow);
  py::enum_<Turns>(m, "Turns")
      .value("ONE_BY_ONE", Turns::kOneByOne)
      .value("IN_TURN", Turns::kInTurn)
      .value("ANY_ORDER", Turns::kAnyOrder);
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
