#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <utility>
#include <vector>

#include "program/program.h"
#include "runtime/memory/replicas.h"
#include "runtime/network/ring.h"

namespace poptorch_emu {

// What lives on the virtual IPUs between calls: variables and hyper-parameters. A variable that is
// the same on several replicas is stored once for all of them; of a sharded one each replica holds
// a part. Of several processes each stores whole what is cut over the replicas of all, and gathers
// it when its own parts have changed. Not synchronised but where it is said: the executor lets only
// one thread at a time touch an entry.
class DeviceMemory {
 public:
  DeviceMemory(const Program& program, const Replicas& replicas);

  // Copies a host tensor, always whole, to the copy that the replica has; throws `Error` if shape
  // or dtype differ from the variable's.
  void write(VariableId id, int64_t replica, const at::Tensor& value);
  // Returns a fresh copy.
  at::Tensor read(VariableId id, int64_t replica) const;

  // A variable that is not sharded, as the replica has it.
  const at::Tensor& stored(VariableId id, int64_t replica) const { return slot(id, replica); }
  // The whole variable, put together from its parts if it is sharded.
  at::Tensor variable(VariableId id, int64_t replica) const;
  // The replica's part of a variable, whether that is how it is stored or not.
  at::Tensor variable_shard(VariableId id, int64_t replica) const;
  // Which of the copies of a variable a replica has, and how many there are.
  int64_t copy_of(VariableId id, int64_t replica) const;
  int64_t num_copies(VariableId id) const {
    return static_cast<int64_t>(variables_.at(id.value).size());
  }
  // How often the replica's copy of a variable has changed, or a scalar.
  int64_t num_changes(VariableId id, int64_t replica) const {
    return num_changes_[id.value][copy_of(id, replica)];
  }
  int64_t num_changes(ScalarId id) const { return num_scalar_changes_[id.value]; }
  // Says that the memory of a variable was changed in its place.
  void note_change(VariableId id, int64_t replica) {
    ++num_changes_[id.value][copy_of(id, replica)];
  }
  // Whether `value` is the very memory of the variable, which was changed in its place.
  bool is_stored(VariableId id, int64_t replica, const at::Tensor& value) const {
    return slot(id, replica).is_same(value);
  }
  // Makes `value` the variable; nothing is copied.
  void assign(VariableId id, int64_t replica, at::Tensor value);
  // Makes `value` the replica's part. Of a variable that is stored whole the parts are gathered,
  // and take effect with the commit. Replicas may do so at the same time.
  void assign_shard(VariableId id, int64_t replica, at::Tensor value);
  // Gets the parts that other processes have assigned, when all here have been, as the `number`-th
  // exchange of a window. Throws `Error` when another process fails.
  void gather(const std::vector<VariableId>& ids, Ring& ring, int64_t number);
  // Makes `values` ([n, width]) these rows (int64 [n]) of a matrix, with the commit.
  void assign_rows(VariableId id, int64_t replica, at::Tensor rows, at::Tensor values);
  // Keeps what was assigned since the last commit, or takes it back.
  void commit();
  void roll_back();

  const at::Tensor& scalar(ScalarId id) const { return scalars_[id.value]; }
  void set_scalar(ScalarId id, double value);

  // Bytes of all variables, each counted as often as it is stored.
  int64_t variable_bytes() const;
  // Bytes of what one replica holds, shared or not.
  int64_t replica_bytes(int64_t replica) const;

 private:
  const at::Tensor& slot(VariableId id, int64_t replica) const;
  at::Tensor& slot(VariableId id, int64_t replica);

  // The value of an assigned variable at the last commit; guarded by `undo_mutex_`, since virtual
  // IPUs assign at the same time.
  struct Undo {
    VariableId variable;
    int64_t replica;
    at::Tensor value;
  };

  // Rows that a variable gets with the commit; guarded by `undo_mutex_`, too.
  struct PendingRows {
    VariableId variable;
    int64_t replica;
    at::Tensor rows;
    at::Tensor values;
  };
  void put(const PendingRows& pending);

  const Program& program_;
  const Replicas replicas_;
  std::vector<std::vector<at::Tensor>> variables_;  // by variable, then copy
  std::vector<std::vector<int64_t>> num_changes_;   // likewise
  std::vector<at::Tensor> gathering_;               // by variable; guarded by `gathering_mutex_`
  std::mutex gathering_mutex_;
  std::vector<Undo> undo_;
  std::vector<PendingRows> pending_rows_;
  std::mutex undo_mutex_;
  std::vector<at::Tensor> scalars_;
  std::vector<int64_t> num_scalar_changes_;  // by scalar
};

}  // namespace poptorch_emu
