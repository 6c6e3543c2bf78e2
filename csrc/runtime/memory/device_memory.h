#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "program/program.h"
#include "runtime/memory/shards.h"
#include "runtime/network/ring.h"

namespace poptorch_emu {

// Variables and hyper-parameters of the virtual IPUs, which persist between calls.
//
// Replicas with the same value of a variable share one copy. In a sharded variable, each replica
// holds a part. With several processes, each process stores variables whole that are sharded over
// the replicas of all processes, and gathers them after its own parts have changed.
//
// Not synchronised unless a method says so: the executor lets one thread at a time access an entry.
class DeviceMemory {
 public:
  DeviceMemory(const Program& program, const Replicas& replicas);

  // Copies a whole host tensor to the replica's copy. Throws `Error` for a wrong shape or type.
  void write(VariableId id, int64_t replica, const at::Tensor& value);
  // Returns a new tensor with the whole variable.
  at::Tensor read(VariableId id, int64_t replica) const;

  // Returns the replica's copy of a variable that is not sharded.
  const at::Tensor& stored(VariableId id, int64_t replica) const {
    return variables_.at(id.value).at(copy_of(id, replica));
  }
  // Returns the whole variable, assembled from its parts if it is sharded.
  at::Tensor variable(VariableId id, int64_t replica) const;
  // Returns the replica's part of a variable, cut from its copy unless the variable is sharded.
  at::Tensor variable_shard(VariableId id, int64_t replica) const;

  // Returns the index of a replica's copy of a variable, and the number of copies.
  int64_t copy_of(VariableId id, int64_t replica) const;
  int64_t num_copies(VariableId id) const {
    return static_cast<int64_t>(variables_[id.value].size());
  }

  // Returns how often the replica's copy of a variable, or a scalar, has changed.
  int64_t num_changes(VariableId id, int64_t replica) const {
    return num_changes_[id.value][copy_of(id, replica)];
  }
  int64_t num_changes(ScalarId id) const { return num_scalar_changes_[id.value]; }
  // Counts a change that was made in the memory of a variable.
  void note_change(VariableId id, int64_t replica) {
    ++num_changes_[id.value][copy_of(id, replica)];
  }

  // Returns whether `value` is the replica's copy itself, so that it was changed in place.
  bool is_stored(VariableId id, int64_t replica, const at::Tensor& value) const {
    return stored(id, replica).is_same(value);
  }
  // Makes `value` the replica's copy of the variable, without copying it.
  void assign(VariableId id, int64_t replica, at::Tensor value);
  // Makes `value` the replica's part. Parts of a variable that is stored whole are gathered and
  // take effect at the commit. Replicas may assign in parallel.
  void assign_shard(VariableId id, int64_t replica, at::Tensor value);
  // Receives the parts that other processes have assigned, after all parts have been assigned here,
  // as exchange `number` of a window. Throws `Error` when another process fails.
  void gather(const std::vector<VariableId>& ids, Ring& ring, int64_t number);
  // Overwrites these rows (int64 [n]) of a matrix with `values` ([n, width]) at the commit.
  void assign_rows(VariableId id, int64_t replica, at::Tensor rows, at::Tensor values);
  // Keep or undo the assignments since the last commit.
  void commit();
  void roll_back();

  const at::Tensor& scalar(ScalarId id) const { return scalars_[id.value]; }
  void set_scalar(ScalarId id, double value);

  // Returns the bytes of all copies of all variables.
  int64_t variable_bytes() const;
  // Returns the bytes of one replica's copies, shared with others or not.
  int64_t replica_bytes(int64_t replica) const;

 private:
  at::Tensor& slot(VariableId id, int64_t replica) {
    return variables_.at(id.value).at(copy_of(id, replica));
  }

  // The value of an assigned variable at the last commit.
  struct Undo {
    VariableId variable;
    int64_t replica;
    at::Tensor value;
  };

  // Rows of a variable that the next commit overwrites.
  struct PendingRows {
    VariableId variable;
    int64_t replica;
    at::Tensor rows;
    at::Tensor values;
  };
  void put(const PendingRows& pending);

  const Program& program_;
  const Replicas replicas_;
  std::vector<std::vector<at::Tensor>> variables_;  // indexed by variable, then copy
  std::vector<std::vector<int64_t>> num_changes_;   // indexed by variable, then copy
  std::vector<at::Tensor> gathering_;               // indexed by variable, under `gathering_mutex_`
  std::mutex gathering_mutex_;
  // Assignments to undo or to carry out; virtual IPUs add to them in parallel, under `undo_mutex_`.
  std::vector<Undo> undo_;
  std::vector<PendingRows> pending_rows_;
  std::mutex undo_mutex_;
  std::vector<at::Tensor> scalars_;
  std::vector<int64_t> num_scalar_changes_;
};

}  // namespace poptorch_emu
