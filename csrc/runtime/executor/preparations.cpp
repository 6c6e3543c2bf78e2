#include "runtime/executor/preparations.h"

#include <variant>

#include "runtime/memory/engine_memory.h"

namespace poptorch_emu {

Preparations::Preparations(const Program& program, const DeviceMemory& memory)
    : program_(program), memory_(memory), of_variable_(program.variables.size()) {
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::kPreparation) {
      preparations_.push_back(nullptr);
      continue;
    }
    preparations_.push_back(make(segment));
    if (segment.lifetime != Lifetime::kWindow) continue;
    const Preparation& preparation = *preparations_.back();
    of_variable_[preparation.variables.front().value].push_back(&preparation);
  }
}

std::unique_ptr<Preparations::Preparation> Preparations::make(const Segment& segment) const {
  auto made = std::make_unique<Preparation>(Preparation{segment, {}, {}, {}});
  for (const Load& load : segment.loads) {
    if (const auto* variable = std::get_if<LoadVariable>(&load.source)) {
      made->variables.push_back(variable->variable);
    } else if (const auto* scalar = std::get_if<LoadScalar>(&load.source)) {
      made->scalars.push_back(scalar->scalar);
    }
  }
  const bool is_of_one = segment.lifetime == Lifetime::kWindow;
  const int64_t num_copies = is_of_one ? memory_.num_copies(made->variables.front()) : 1;
  for (int64_t i = 0; i < num_copies; ++i) {
    made->copies.push_back(std::make_unique<Copy>(
        Frame(program_, segment, /*lane=*/0, /*call_host=*/{}, /*sums=*/{}, Replicas{})));
  }
  return made;
}

Preparations::Copy& Preparations::copy_of(const Preparation& preparation, int64_t replica) const {
  const bool is_shared = preparation.copies.size() == 1;
  const int64_t index = is_shared ? 0 : memory_.copy_of(preparation.variables.front(), replica);
  return *preparation.copies[index];
}

int64_t Preparations::changes_of(const Preparation& preparation, int64_t replica) const {
  int64_t count = 0;
  for (VariableId id : preparation.variables) count += memory_.num_changes(id, replica);
  for (ScalarId id : preparation.scalars) count += memory_.num_changes(id);
  return count;
}

void Preparations::run(const Preparation& preparation, Copy& copy, int64_t replica) const {
  copy.made_at = kNever;
  for (const Load& load : preparation.segment.loads) {
    at::Tensor& target = copy.frame[load.target];
    if (const auto* variable = std::get_if<LoadVariable>(&load.source)) {
      target = memory_.stored(variable->variable, replica);
    } else if (const auto* scalar = std::get_if<LoadScalar>(&load.source)) {
      target = memory_.scalar(scalar->scalar);
    } else {
      target = program_.constants[std::get<LoadConstant>(load.source).constant.value];
    }
  }
  copy.frame.run(/*micro_batch=*/0, replica);
  copy.made_at.store(changes_of(preparation, replica), std::memory_order_release);
}

bool Preparations::run_before_call() {
  bool are_replaced = false;
  for (const auto& preparation : preparations_) {
    if (preparation == nullptr || preparation->segment.lifetime != Lifetime::kCall) continue;
    Copy& copy = *preparation->copies.front();
    if (copy.made_at == changes_of(*preparation, /*replica=*/0)) continue;
    copy.frame.clear();
    run(*preparation, copy, /*replica=*/0);
    are_replaced = true;
  }
  return are_replaced;
}

const at::Tensor& Preparations::value(const LoadPrepared& source, int64_t replica) {
  const Preparation& preparation = *preparations_[source.preparation.value];
  Copy& copy = copy_of(preparation, replica);
  if (preparation.segment.lifetime == Lifetime::kWindow) {
    const int64_t changes = changes_of(preparation, replica);
    if (copy.made_at.load(std::memory_order_acquire) != changes) {
      const std::lock_guard lock(copy.mutex);
      // The values outlive the action that asks for them, so they must not use its memory plan.
      const SegmentMemory::Suspension outside;
      if (copy.made_at != changes) run(preparation, copy, replica);
    }
  }
  return copy.frame[source.source];
}

void Preparations::renew(VariableId id, int64_t replica) {
  for (const Preparation* preparation : of_variable_[id.value]) {
    Copy& copy = copy_of(*preparation, replica);
    // A value that does not exist would be allocated here; its first reader computes it instead.
    if (copy.made_at != kNever) run(*preparation, copy, replica);
  }
}

void Preparations::clear() {
  for (const auto& preparation : preparations_) {
    if (preparation == nullptr) continue;
    for (const auto& copy : preparation->copies) {
      copy->frame.clear();
      copy->made_at = kNever;
    }
  }
}

}  // namespace poptorch_emu
