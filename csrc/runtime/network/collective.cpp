#include "runtime/network/collective.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <string>

#include "common/errors.h"

namespace poptorch_emu {
namespace {

at::Tensor pieces_for(const std::vector<at::Tensor>& parts, int64_t replica) {
  const auto count = static_cast<int64_t>(parts.size());
  const int64_t rows = parts.front().size(0) / count;
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& part : parts) pieces.push_back(part.narrow(0, replica * rows, rows));
  return at::cat(pieces);
}

}  // namespace

at::Tensor collective_result(const Instruction& instruction, const std::vector<at::Tensor>& parts,
                             int64_t replica, int64_t num_replicas) {
  const int64_t expected = instruction.arguments[1].toInt();
  if (expected != num_replicas) {
    throw Error("it is an exchange between " + std::to_string(expected) +
                " replicas, but the model runs on " + std::to_string(num_replicas));
  }
  switch (collective_of(instruction.op)) {
    case Collective::kAllGather:
      return at::stack(parts);
    case Collective::kAllReduce:
      return gathered(ring_sums(parts), parts.front().sizes());
    case Collective::kAllToAll:
      return pieces_for(parts, replica);
  }
  return {};
}

std::vector<at::Tensor> exchanged(Collective collective, const std::vector<at::Tensor>& parts,
                                  const Replicas& replicas, Ring& ring, int64_t number) {
  if (collective == Collective::kAllReduce) {
    ring.all_reduce(number, {parts});
    return {parts.front()};
  }
  const at::Tensor& first = parts.front();
  const at::Tensor all = at::empty({replicas.all, first.numel()}, first.options());
  for (int64_t here = 0; here < replicas.here; ++here) {
    all.select(0, replicas.first + here).copy_(parts[here].view({-1}));
  }
  ring.all_gather(number, {all}, replicas.here);
  std::vector<at::Tensor> gathered;
  for (const at::Tensor& row : all.unbind()) gathered.push_back(row.view(first.sizes()));
  return gathered;
}

}  // namespace poptorch_emu
