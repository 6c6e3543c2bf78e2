#include "runtime/network/ring.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "common/clock.h"
#include "common/errors.h"
#include "runtime/memory/shards.h"

namespace poptorch_emu {
namespace {

constexpr int64_t kRangeAlignment = 64;
// Maximum size of a packet: small enough to stay in a cache while it is added, and large enough
// that the overhead of a message is negligible. Measured with benchmarks/processes.py.
constexpr int64_t kPacketBytes = int64_t{1} << 20;
// Minimum size of a range that is sent alone, without a copy.
constexpr int64_t kMinBytesAlone = int64_t{1} << 16;
// Number of packets that are received in parallel.
constexpr size_t kMaxReceiving = 4;
// Limits of the two numbers in a 31-bit tag: the model, then the exchange.
constexpr int64_t kMaxModels = int64_t{1} << 15;
constexpr int64_t kMaxNumbers = int64_t{1} << 16;

int64_t padded(int64_t num_bytes) {
  return (num_bytes + kRangeAlignment - 1) / kRangeAlignment * kRangeAlignment;
}

at::Tensor narrowed(const at::Tensor& whole, int64_t begin, int64_t end) {
  return whole.view({-1}).narrow(0, begin, end - begin);
}

// Returns the bytes of a range. A contiguous tensor with one element can have any stride.
at::Tensor as_bytes(const at::Tensor& range) {
  return (range.numel() == 1 ? range.as_strided({1}, {1}) : range).view(at::kByte);
}

}  // namespace

Ring::Ring(const std::string& group_name, int64_t model, std::chrono::milliseconds timeout)
    : peers_(group_name, timeout),
      model_(model),
      process_(peers_.process()),
      num_processes_(peers_.num_processes()) {
  if (num_processes_ < 2) throw Error("A ring needs at least 2 processes.");
  if (model < 0 || model >= kMaxModels) {
    throw Error("A program of several processes can have at most " + std::to_string(kMaxModels) +
                " models, but this model has the number " + std::to_string(model) + ".");
  }
}

void Ring::all_reduce(int64_t number, const std::vector<Summands>& tensors) {
  if (tensors.empty()) return;
  const int64_t start_ns = now_ns();
  begin(number, tensors, static_cast<int64_t>(tensors.front().size()));
  scatter_sums();
  gather_blocks();
  seconds_ += static_cast<double>(now_ns() - start_ns) * 1e-9;
}

void Ring::reduce_scatter(int64_t number, const std::vector<Summands>& tensors) {
  if (tensors.empty()) return;
  const int64_t start_ns = now_ns();
  begin(number, tensors, static_cast<int64_t>(tensors.front().size()));
  scatter_sums();
  seconds_ += static_cast<double>(now_ns() - start_ns) * 1e-9;
}

void Ring::all_gather(int64_t number, const std::vector<at::Tensor>& tensors,
                      int64_t replicas_per_process) {
  if (tensors.empty()) return;
  const int64_t start_ns = now_ns();
  std::vector<Summands> wholes;
  for (const at::Tensor& tensor : tensors) wholes.push_back({tensor});
  begin(number, wholes, replicas_per_process);
  gather_blocks();
  seconds_ += static_cast<double>(now_ns() - start_ns) * 1e-9;
}

void Ring::begin(int64_t number, const std::vector<Summands>& tensors, int64_t num_local) {
  if (number < 0 || number >= kMaxNumbers) {
    throw Error("A model exchanges at most " + std::to_string(kMaxNumbers) +
                " lists of tensors, but this is number " + std::to_string(number) + ".");
  }
  tensors_ = &tensors;
  num_local_ = num_local;
  tag_ = model_ * kMaxNumbers + number;
  blocks_.clear();
  sending_.clear();
  for (int64_t process = 0; process < num_processes_; ++process) {
    const int64_t last = (process + 1) * num_local_ - 1;
    blocks_.push_back({packets_of(process * num_local_, last), packets_of(last, last + 1)});
  }
}

// Returns the first element of a replica's part; the replica after the last one gives the end.
int64_t Ring::part_begin(size_t tensor, int64_t replica) const {
  const int64_t num_elements = (*tensors_)[tensor].front().numel();
  return std::min(replica * shard_length(num_elements, num_processes_ * num_local_), num_elements);
}

// Returns the packets of the parts of replicas [first_replica, last_replica).
std::vector<Ring::Packet> Ring::packets_of(int64_t first_replica, int64_t last_replica) const {
  std::vector<Packet> packets;
  Packet small;
  int64_t small_bytes = 0;
  for (size_t tensor = 0; tensor < tensors_->size(); ++tensor) {
    const auto width = static_cast<int64_t>((*tensors_)[tensor].front().element_size());
    const int64_t begin = part_begin(tensor, first_replica);
    const int64_t end = part_begin(tensor, last_replica);
    const int64_t num_bytes = (end - begin) * width;
    if (num_bytes >= kMinBytesAlone) {
      for (int64_t at = begin; at < end; at += kPacketBytes / width) {
        const int64_t stop = std::min(at + kPacketBytes / width, end);
        packets.push_back({{{tensor, at, stop}}});
      }
    } else if (num_bytes > 0) {
      if (small_bytes + num_bytes > kPacketBytes) {
        packets.push_back(std::exchange(small, {}));
        small_bytes = 0;
      }
      small.ranges.push_back({tensor, begin, end});
      small_bytes += padded(num_bytes);
    }
  }
  if (!small.ranges.empty()) packets.push_back(std::move(small));
  return packets;
}

const Ring::Block& Ring::block(int64_t steps_before) const {
  return blocks_[(process_ - steps_before + num_processes_) % num_processes_];
}

// Returns the size of a packet in bytes; a single range is not padded.
int64_t Ring::num_bytes_of(const Packet& packet) const {
  int64_t num_bytes = 0;
  for (const Range& range : packet.ranges) {
    const auto width = static_cast<int64_t>((*tensors_)[range.tensor].front().element_size());
    const int64_t own = (range.end - range.begin) * width;
    num_bytes += packet.ranges.size() == 1 ? own : padded(own);
  }
  return num_bytes;
}

// Returns a local replica's values of a range.
at::Tensor Ring::place(const Range& range, int64_t local) const {
  return narrowed((*tensors_)[range.tensor][local], range.begin, range.end);
}

at::Tensor Ring::take_buffer() {
  // A packet of small ranges ends with the padding of the last one.
  if (buffers_.empty()) return at::empty({kPacketBytes + kRangeAlignment}, at::kByte);
  at::Tensor buffer = std::move(buffers_.back());
  buffers_.pop_back();
  return buffer;
}

// Sums the parts of all blocks. In step s a process works on the block of the process s before it.
// The sums of its own block begin here and end here P steps later.
void Ring::scatter_sums() {
  std::vector<Arrival> arrivals;
  for (const Packet& packet : block(1).begun) arrivals.push_back({&packet, 1, false});
  for (int64_t step = 2; step <= num_processes_; ++step) {
    for (const Packet& packet : block(step).begun) arrivals.push_back({&packet, step, false});
    for (const Packet& packet : block(step).others) arrivals.push_back({&packet, step, true});
  }
  for (const Packet& packet : block(0).begun) begin_own(packet);
  bool have_others_begun = false;
  const auto begin_others = [&] {
    if (std::exchange(have_others_begun, true)) return;
    for (const Packet& packet : block(1).others) add_passing(packet, nullptr);
  };
  if (block(1).begun.empty()) begin_others();
  receive_all(arrivals, false, [&](const Arrival& arrival, const at::Tensor& buffer) {
    // Packets are sent in the order in which the next process receives them.
    if (arrival.step > 1) begin_others();
    if (arrival.step < num_processes_) {
      add_passing(*arrival.packet, &buffer);
    } else {
      finish_own(*arrival.packet, buffer, arrival.is_last_part);
    }
  });
  begin_others();
  finish_sending();
}

// Begins the sums of the own block: part k begins with replica k + 1. The last replica's tensors
// hold the sums, because it adds nothing at the end.
void Ring::begin_own(const Packet& packet) {
  for (const Range& range : packet.ranges) {
    const std::vector<at::Tensor>& summands = (*tensors_)[range.tensor];
    for (int64_t part = 0; part < num_local_ - 2; ++part) {
      const int64_t replica = process_ * num_local_ + part;
      const int64_t begin = std::max(range.begin, part_begin(range.tensor, replica));
      const int64_t end = std::min(range.end, part_begin(range.tensor, replica + 1));
      if (begin >= end) continue;
      at::Tensor sum = narrowed(summands[part + 1], begin, end);
      for (int64_t local = part + 2; local < num_local_ - 1; ++local) {
        sum.add_(narrowed(summands[local], begin, end));
      }
      narrowed(summands.back(), begin, end).add_(sum);
    }
  }
  send(packet, num_local_ - 1);
}

// Adds the values of all replicas here to the arrived values, if any, and sends the sums.
void Ring::add_passing(const Packet& packet, const at::Tensor* arrived) {
  int64_t offset = 0;
  for (const Range& range : packet.ranges) {
    at::Tensor sum = place(range, 0);
    const auto num_bytes = static_cast<int64_t>(sum.nbytes());
    if (arrived != nullptr) {
      sum.add_(arrived->narrow(0, offset, num_bytes).view(sum.scalar_type()));
    }
    offset += padded(num_bytes);
    for (int64_t local = 1; local < num_local_; ++local) sum.add_(place(range, local));
  }
  send(packet, 0);
}

void Ring::finish_own(const Packet& packet, const at::Tensor& arrived, bool is_last_part) {
  int64_t offset = 0;
  for (const Range& range : packet.ranges) {
    at::Tensor sum = place(range, 0);
    const auto num_bytes = static_cast<int64_t>(sum.nbytes());
    sum.add_(arrived.narrow(0, offset, num_bytes).view(sum.scalar_type()));
    offset += padded(num_bytes);
    const int64_t first_part = is_last_part ? num_local_ - 1 : 1;
    for (int64_t part = first_part; part < num_local_; ++part) {
      const int64_t replica = process_ * num_local_ + part;
      const int64_t begin = std::max(range.begin, part_begin(range.tensor, replica));
      const int64_t end = std::min(range.end, part_begin(range.tensor, replica + 1));
      if (begin >= end) continue;
      at::Tensor part_sum = narrowed((*tensors_)[range.tensor].front(), begin, end);
      for (int64_t local = 1; local <= part; ++local) {
        part_sum.add_(narrowed((*tensors_)[range.tensor][local], begin, end));
      }
    }
  }
}

void Ring::gather_blocks() {
  for (const auto* packets : {&block(0).begun, &block(0).others}) {
    for (const Packet& packet : *packets) send(packet, 0);
  }
  std::vector<Arrival> arrivals;
  for (int64_t step = 1; step < num_processes_; ++step) {
    for (const Packet& packet : block(step).begun) arrivals.push_back({&packet, step, false});
    for (const Packet& packet : block(step).others) arrivals.push_back({&packet, step, true});
  }
  receive_all(arrivals, true, [&](const Arrival& arrival, const at::Tensor& buffer) {
    if (buffer.defined()) store(*arrival.packet, buffer);
    if (arrival.step < num_processes_ - 1) send(*arrival.packet, 0);
  });
  finish_sending();
}

void Ring::store(const Packet& packet, const at::Tensor& arrived) {
  int64_t offset = 0;
  for (const Range& range : packet.ranges) {
    at::Tensor target = place(range, 0);
    const auto num_bytes = static_cast<int64_t>(target.nbytes());
    target.copy_(arrived.narrow(0, offset, num_bytes).view(target.scalar_type()));
    offset += padded(num_bytes);
  }
}

template <typename Use>
void Ring::receive_all(const std::vector<Arrival>& arrivals, bool may_stay, const Use& use) {
  std::deque<Transfer> awaited;
  size_t next = 0;
  for (const Arrival& arrival : arrivals) {
    while (next < arrivals.size() && awaited.size() < kMaxReceiving) {
      awaited.push_back(receive(*arrivals[next++].packet, may_stay));
    }
    const Transfer first = std::move(awaited.front());
    awaited.pop_front();
    peers_.wait(first.message);
    use(arrival, first.buffer);
    if (first.buffer.defined()) buffers_.push_back(first.buffer);
  }
}

Ring::Transfer Ring::receive(const Packet& packet, bool may_stay) {
  const int64_t previous = (process_ - 1 + num_processes_) % num_processes_;
  if (may_stay && packet.ranges.size() == 1) {
    const at::Tensor bytes = as_bytes(place(packet.ranges.front(), 0));
    return {{}, peers_.receive(bytes, previous, tag_)};
  }
  const at::Tensor buffer = take_buffer();
  return {buffer, peers_.receive(buffer.narrow(0, 0, num_bytes_of(packet)), previous, tag_)};
}

// Sends the values of a local replica.
void Ring::send(const Packet& packet, int64_t local) {
  const int64_t next = (process_ + 1) % num_processes_;
  if (packet.ranges.size() == 1) {
    const at::Tensor bytes = as_bytes(place(packet.ranges.front(), local));
    sending_.push_back({{}, peers_.send(bytes, next, tag_)});
    return;
  }
  const at::Tensor buffer = take_buffer();
  int64_t offset = 0;
  for (const Range& range : packet.ranges) {
    const at::Tensor source = place(range, local);
    const auto num_bytes = static_cast<int64_t>(source.nbytes());
    buffer.narrow(0, offset, num_bytes).view(source.scalar_type()).copy_(source);
    offset += padded(num_bytes);
  }
  sending_.push_back({buffer, peers_.send(buffer.narrow(0, 0, num_bytes_of(packet)), next, tag_)});
}

void Ring::finish_sending() {
  for (const Transfer& each : sending_) {
    peers_.wait(each.message);
    if (each.buffer.defined()) buffers_.push_back(each.buffer);
  }
  sending_.clear();
}

}  // namespace poptorch_emu
