#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "program/program.h"
#include "runtime/memory/shards.h"
#include "runtime/network/ring.h"

namespace poptorch_emu {

// The variables and hyper-parameters of the virtual IPUs, which live on between calls.
//
// Replicas that have the same value of a variable share one copy of it. Of a sharded variable each
// replica holds a part. With several processes, each of them stores whole what is cut over the
// replicas of all processes, and gathers it after its own parts have changed.
//
// Not synchronised unless a method says so: the executor lets one thread at a time touch an entry.
class DeviceMemory {
 public:
  DeviceMemory(const Program& program, const Replicas& replicas);

  // Copies a host tensor, always whole, to the replica's copy. Throws `Error` if its shape or type
  // is not the variable's.
  void write(VariableId id, int64_t replica, const at::Tensor& value);
  // Returns a new tensor, always whole.
  at::Tensor read(VariableId id, int64_t replica) const;

  // The replica's copy of a variable that is not sharded.
  const at::Tensor& stored(VariableId id, int64_t replica) const {
    return variables_.at(id.value).at(copy_of(id, replica));
  }
  // The whole variable, put together from its parts if it is sharded.
  at::Tensor variable(VariableId id, int64_t replica) const;
  // The replica's part of a variable, cut from its copy unless the variable is sharded.
  at::Tensor variable_shard(VariableId id, int64_t replica) const;

  // The index of a replica's copy of a variable, and the number of copies.
  int64_t copy_of(VariableId id, int64_t replica) const;
  int64_t num_copies(VariableId id) const {
    return static_cast<int64_t>(variables_[id.value].size());
  }

  // How often the replica's copy of a variable, or a scalar, has changed.
  int64_t num_changes(VariableId id, int64_t replica) const {
    return num_changes_[id.value][copy_of(id, replica)];
  }
  int64_t num_changes(ScalarId id) const { return num_scalar_changes_[id.value]; }
  // Counts a change that was made in the memory of a variable.
  void note_change(VariableId id, int64_t replica) {
    ++num_changes_[id.value][copy_of(id, replica)];
  }

  // Whether `value` is the replica's copy itself, which was changed in its memory.
  bool is_stored(VariableId id, int64_t replica, const at::Tensor& value) const {
    return stored(id, replica).is_same(value);
  }
  // Makes `value` the replica's copy of the variable. Nothing is copied.
  void assign(VariableId id, int64_t replica, at::Tensor value);
  // Makes `value` the replica's part. The parts of a variable that is stored whole are gathered and
  // take effect with the commit. Replicas may assign at the same time.
  void assign_shard(VariableId id, int64_t replica, at::Tensor value);
  // Gets the parts that other processes have assigned, after all parts have been assigned here, as
  // the `number`-th exchange of a window. Throws `Error` when another process fails.
  void gather(const std::vector<VariableId>& ids, Ring& ring, int64_t number);
  // Makes `values` ([n, width]) these rows (int64 [n]) of a matrix, with the commit.
  void assign_rows(VariableId id, int64_t replica, at::Tensor rows, at::Tensor values);
  // Keeps or undoes the assignments since the last commit.
  void commit();
  void roll_back();

  const at::Tensor& scalar(ScalarId id) const { return scalars_[id.value]; }
  void set_scalar(ScalarId id, double value);

  // Bytes of all copies of all variables.
  int64_t variable_bytes() const;
  // Bytes of the copies of one replica, shared with others or not.
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

  // Rows that a variable gets with the commit.
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
  std::vector<at::Tensor> gathering_;               // by variable, under `gathering_mutex_`
  std::mutex gathering_mutex_;
  // Virtual IPUs assign at the same time, under `undo_mutex_`.
  std::vector<Undo> undo_;
  std::vector<PendingRows> pending_rows_;
  std::mutex undo_mutex_;
  std::vector<at::Tensor> scalars_;
  std::vector<int64_t> num_scalar_changes_;
};

}  // namespace poptorch_emu
