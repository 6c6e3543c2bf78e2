// The part of the executor that decides what runs next, and where a window ends.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <sstream>

#include "common/clock.h"
#include "common/errors.h"
#include "runtime/executor.h"

namespace poptorch_emu {

void Executor::work(int64_t worker) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::unique_lock lock(mutex_);
  while (!is_done_ && !error_) {
    if (worker == 0 && serve_host_request(lock)) continue;
    VirtualIpu* ipu = find_ready();
    if (ipu != nullptr) {
      run_actions(*ipu, worker, lock);
      continue;
    }
    if (num_running_ == 0 && !is_paused()) {
      try {
        report_deadlock();
      } catch (...) {
        error_ = std::current_exception();
      }
      break;
    }
    ++num_waiting_;
    progress_.wait(lock);
    --num_waiting_;
  }
  progress_.notify_all();
}

void Executor::run_actions(VirtualIpu& ipu, int64_t worker, std::unique_lock<std::mutex>& lock) {
  ipu.is_running = true;
  ++num_running_;
  do {
    const Action action = next_action(ipu);
    const int64_t window = window_;
    take_inputs(ipu, action);
    lock.unlock();
    const int64_t start_ns = is_tracing_ ? now_ns() : 0;
    std::exception_ptr error;
    try {
      execute(ipu, action);
    } catch (...) {
      error = std::current_exception();
    }
    const int64_t end_ns = is_tracing_ ? now_ns() : 0;
    lock.lock();
    if (error) {
      if (!error_) error_ = error;
      break;
    }
    if (is_tracing_) {
      events_.push_back({ipu.replica, ipu.ipu, action.segment.value, window, action.micro_batch,
                         worker, start_ns, end_ns});
    }
    give_outputs(ipu, action);
    note_results(ipu, action);
    ipu.is_running = false;
    advance(ipu);
    if (num_waiting_ > 0) progress_.notify_all();
    const bool is_wanted = worker == 0 && !host_requests_.empty();
    ipu.is_running = !is_done_ && !error_ && !is_wanted && is_ready(ipu);
  } while (ipu.is_running);
  ipu.is_running = false;
  --num_running_;
  if (num_waiting_ > 0) progress_.notify_all();
}

const Action& Executor::next_action(const VirtualIpu& ipu) const {
  return program_->schedule[ipu.ipu][ipu.position];
}

Executor::VirtualIpu* Executor::find_ready() {
  for (VirtualIpu& ipu : ipus_) {
    if (!ipu.is_running && is_ready(ipu)) return &ipu;
  }
  return nullptr;
}

bool Executor::is_ready(const VirtualIpu& ipu) {
  if (is_paused() || ipu.position == program_->schedule[ipu.ipu].size()) return false;
  const Segment& segment = program_->at(next_action(ipu).segment);
  if (segment.kind == SegmentKind::kWindow) {
    // Nothing of this window may read weights or add gradients any more.
    if (micro_batch_actions_left_ > 0 || !have_peers_arrived(ipu)) return false;
  } else if (segment.is_collective && !have_peers_arrived(ipu)) {
    return false;
  }
  return has_links_ready(segment, ipu.replica);
}

// Whether every replica of this IPU is through with what comes before the next action.
bool Executor::have_peers_arrived(const VirtualIpu& ipu) const {
  return std::all_of(ipus_.begin(), ipus_.end(), [&ipu](const VirtualIpu& other) {
    return other.ipu != ipu.ipu || other.position >= ipu.position;
  });
}

// Whether this replica runs the next action; a window segment may be run by others.
bool Executor::takes_part(const VirtualIpu& ipu) const {
  const Segment& segment = program_->at(next_action(ipu).segment);
  return segment.kind == SegmentKind::kMicroBatch ||
         std::find(segment.runners.begin(), segment.runners.end(), ipu.replica) !=
             segment.runners.end();
}

void Executor::move_to(VirtualIpu& ipu, size_t position) {
  const size_t end = program_->schedule[ipu.ipu].size();
  ipu.position = position;
  while (ipu.position < end && !takes_part(ipu)) ++ipu.position;
  if (ipu.position == end) ++ipus_at_end_;
}

bool Executor::has_links_ready(const Segment& segment, int64_t replica) {
  const auto has_item = [&](LinkId id) { return queues_[id.value].has_item(replica); };
  const auto has_room = [&](LinkId id) { return queues_[id.value].has_room(replica); };
  return std::all_of(segment.incoming.begin(), segment.incoming.end(), has_item) &&
         std::all_of(segment.outgoing.begin(), segment.outgoing.end(), has_room);
}

void Executor::advance(VirtualIpu& ipu) {
  if (program_->at(next_action(ipu).segment).kind == SegmentKind::kMicroBatch) {
    --micro_batch_actions_left_;
  }
  move_to(ipu, ipu.position + 1);
  if (ipus_at_end_ == static_cast<int64_t>(ipus_.size())) finish_window();
}

void Executor::finish_window() {
  for (int64_t replica = 0; replica < options_.num_replicas; ++replica) {
    int64_t& peak = peak_accumulator_bytes_[replica];
    peak = std::max(peak, accumulators_.bytes(replica));
  }
  accumulators_.clear();
  memory_.commit();
  ++window_;
  if (window_ == num_windows_) {
    is_done_ = true;
    return;
  }
  ipus_at_end_ = 0;
  micro_batch_actions_left_ = 0;
  for (VirtualIpu& ipu : ipus_) {
    move_to(ipu, 0);
    for (const Action& action : program_->schedule[ipu.ipu]) {
      if (program_->at(action.segment).kind == SegmentKind::kMicroBatch) {
        ++micro_batch_actions_left_;
      }
    }
  }
}

void Executor::report_deadlock() const {
  std::ostringstream out;
  out << "The schedule cannot go on: no virtual IPU is ready.";
  for (const VirtualIpu& ipu : ipus_) {
    out << " Replica " << ipu.replica << ", IPU " << ipu.ipu << ": ";
    if (ipu.position == program_->schedule[ipu.ipu].size()) {
      out << "at the end.";
    } else {
      const Action& action = next_action(ipu);
      out << "waits to run '" << program_->at(action.segment).name << "' for micro-batch "
          << action.micro_batch << ".";
    }
  }
  throw Error(out.str());
}

}  // namespace poptorch_emu
