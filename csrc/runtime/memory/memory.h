#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
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
  // The variable with its channels next to each other, or packed for products with so many rows,
  // converted when it has changed since. One variable is asked for in one form. Any thread may ask
  // while the variable is not changed; then nobody reads what was converted, which is overwritten.
  const at::Tensor& image(VariableId id, int64_t replica) { return converted(id, replica, kImage); }
  const at::Tensor& packed_copy(VariableId id, int64_t replica, int64_t rows) {
    return converted(id, replica, rows);
  }
  // Says that the memory of a variable was changed in its place, and converts it again if it was
  // before: small ones are still in the cache.
  void renew(VariableId id, int64_t replica);
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
  int64_t copy_of(VariableId id, int64_t replica) const;
  const at::Tensor& slot(VariableId id, int64_t replica) const;
  at::Tensor& slot(VariableId id, int64_t replica);

  // What one copy of a variable was converted to.
  struct Conversion {
    int64_t rows = kImage;  // for which it was packed
    at::Tensor tensor;
    std::atomic<bool> is_current = false;
    std::mutex mutex;  // for threads that ask for it when it is not
  };
  static constexpr int64_t kImage = 0;
  const at::Tensor& converted(VariableId id, int64_t replica, int64_t rows);
  static void convert(const at::Tensor& variable, Conversion& conversion);
  void note_change(VariableId id, int64_t replica) {
    conversions_[id.value][copy_of(id, replica)].is_current = false;
  }

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
  std::vector<std::vector<at::Tensor>> variables_;            // by variable, then copy
  mutable std::vector<std::vector<Conversion>> conversions_;  // by variable, then copy
  std::vector<at::Tensor> gathering_;  // by variable; guarded by `gathering_mutex_`
  std::mutex gathering_mutex_;
  std::vector<Undo> undo_;
  std::vector<PendingRows> pending_rows_;
  std::mutex undo_mutex_;
  std::vector<at::Tensor> scalars_;
};

}  // namespace poptorch_emu
