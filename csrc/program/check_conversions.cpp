// What must hold of variables that are converted once for all micro-batches of a window.

#include <map>
#include <string>
#include <utility>
#include <variant>

#include "common/errors.h"
#include "program/program.h"

namespace poptorch_emu {
namespace {

class ConversionChecker {
 public:
  explicit ConversionChecker(const Program& program) : program_(program) {}

  void run() {
    for (const Segment& segment : program_.segments) {
      for (const Load& load : segment.loads) {
        const std::string where = "A load of segment '" + segment.name + "'";
        if (const auto* image = std::get_if<LoadImageVariable>(&load.source)) {
          check_use(segment, image->variable, 4, where);
        } else if (const auto* packed = std::get_if<LoadPackedVariable>(&load.source)) {
          check_use(segment, packed->variable, 2, where);
          check_packed(*packed, where);
          check_rows(*packed, where);
        }
      }
    }
  }

 private:
  const Variable& at(VariableId id) const { return program_.variables[id.value]; }

  void check_use(const Segment& user, VariableId id, size_t num_dims, const std::string& where) {
    if (at(id).shape.size() != num_dims || user.kind != SegmentKind::kMicroBatch) {
      throw Error(where + " converts '" + at(id).name + "', which must have " +
                  std::to_string(num_dims) + " dimensions and be read by a micro-batch segment");
    }
    for (const Segment& segment : program_.segments) {
      if (segment.kind != SegmentKind::kMicroBatch) continue;
      for (const Store& store : segment.stores) {
        const auto* target = std::get_if<StoreVariable>(&store.target);
        if (target != nullptr && target->variable == id) {
          throw Error(where + " converts '" + at(id).name + "', which segment '" + segment.name +
                      "' changes in each micro-batch");
        }
      }
    }
  }

  void check_packed(const LoadPackedVariable& load, const std::string& where) const {
    const at::ScalarType dtype = at(load.variable).dtype;
    if ((dtype != at::kFloat && dtype != at::kHalf) || load.rows < 1) {
      throw Error(where + " packs '" + at(load.variable).name + "' for " +
                  std::to_string(load.rows) +
                  " rows; it must be float32 or float16, for at least one");
    }
  }

  // Memory holds one conversion of a variable.
  void check_rows(const LoadPackedVariable& load, const std::string& where) {
    const int64_t first = rows_.emplace(load.variable, load.rows).first->second;
    if (first != load.rows) {
      throw Error(where + " packs '" + at(load.variable).name + "' for " +
                  std::to_string(load.rows) + " rows, and another load for " +
                  std::to_string(first));
    }
  }

  const Program& program_;
  std::map<VariableId, int64_t> rows_;
};

}  // namespace

void Program::check_conversions() const { ConversionChecker(*this).run(); }

}  // namespace poptorch_emu
