#include "runtime/ring.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "common/clock.h"
#include "common/errors.h"
#include "runtime/shards.h"

namespace poptorch_emu {
namespace {

constexpr int64_t kSectionAlignment = 64;
// A tag is a number of 31 bits: the model, then which all-reduce of it.
constexpr int64_t kMaxModels = int64_t{1} << 15;
constexpr int64_t kMaxNumbers = int64_t{1} << 16;

int64_t section_bytes(int64_t num_bytes) {
  return (num_bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

at::Tensor range(const at::Tensor& whole, int64_t begin, int64_t end) {
  return whole.view({-1}).narrow(0, begin, end - begin);
}

}  // namespace

Ring::Ring(const std::string& group_name, int64_t model, std::chrono::milliseconds timeout)
    : peers_(group_name, timeout),
      model_(model),
      process_(peers_.process()),
      num_processes_(peers_.num_processes()) {
  if (model < 0 || model >= kMaxModels) {
    throw Error("Models in several processes are numbered up to " + std::to_string(kMaxModels) +
                ", but this is number " + std::to_string(model) + ".");
  }
}

void Ring::all_reduce(int64_t number, const std::vector<Summands>& tensors) {
  if (number < 0 || number >= kMaxNumbers) {
    throw Error("A model exchanges at most " + std::to_string(kMaxNumbers) +
                " lists of tensors, but this is number " + std::to_string(number) + ".");
  }
  if (tensors.empty()) return;
  const int64_t start_ns = now_ns();
  num_local_ = static_cast<int64_t>(tensors.front().size());
  tag_ = model_ * kMaxNumbers + number;
  std::vector<Block> blocks;
  int64_t num_bytes = 0;
  for (int64_t process = 0; process < num_processes_; ++process) {
    blocks.push_back(block_of(process, tensors));
    num_bytes = std::max(num_bytes, blocks.back().num_bytes);
  }
  provide_buffers(num_bytes);
  reduce_scatter(blocks, tensors);
  all_gather(blocks, tensors);
  seconds_ += static_cast<double>(now_ns() - start_ns) * 1e-9;
}

int64_t Ring::part_begin(const at::Tensor& tensor, int64_t replica) const {
  const int64_t length = shard_length(tensor.numel(), num_processes_ * num_local_);
  return std::min(replica * length, tensor.numel());
}

Ring::Block Ring::block_of(int64_t process, const std::vector<Summands>& tensors) const {
  Block block;
  for (const Summands& summands : tensors) {
    const at::Tensor& tensor = summands.front();
    const int64_t begin = part_begin(tensor, process * num_local_);
    const int64_t end = part_begin(tensor, (process + 1) * num_local_);
    block.sections.push_back({begin, end, block.num_bytes});
    block.num_bytes += section_bytes((end - begin) * static_cast<int64_t>(tensor.element_size()));
  }
  return block;
}

void Ring::provide_buffers(int64_t num_bytes) {
  for (at::Tensor& buffer : buffers_) {
    if (buffer.defined() && buffer.numel() >= num_bytes) continue;
    buffer = at::empty({num_bytes}, at::TensorOptions(at::kByte));
  }
}

at::Tensor Ring::piece(int64_t buffer, const Section& section, const at::Tensor& like) const {
  const int64_t num_bytes =
      (section.end - section.begin) * static_cast<int64_t>(like.element_size());
  return buffers_[buffer].narrow(0, section.offset_bytes, num_bytes).view(like.scalar_type());
}

// In step s a process works on the block that the process s before it owns: the sums of its own
// block begin here and, P steps later, end here.
void Ring::reduce_scatter(const std::vector<Block>& blocks, const std::vector<Summands>& tensors) {
  const Block& own = blocks[process_];
  if (num_local_ > 1) {
    begin_own_block(own, tensors);
    send(0, own.num_bytes);
  }
  for (int64_t step = 1; step <= num_processes_; ++step) {
    const Block& block = blocks[(process_ - step + num_processes_) % num_processes_];
    const int64_t buffer = step % 2;
    finish_sending(buffer);
    if (step > 1 || num_local_ > 1) receive(buffer, block.num_bytes);
    if (step == num_processes_) {
      finish_own_block(block, tensors, buffer);
    } else {
      add_passing_block(block, tensors, buffer, step == 1);
      send(buffer, block.num_bytes);
    }
  }
}

// Part k begins with replica k + 1; that of the last replica begins in the next process.
void Ring::begin_own_block(const Block& block, const std::vector<Summands>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Summands& summands = tensors[i];
    const Section& section = block.sections[i];
    const at::Tensor sums = piece(0, section, summands.front());
    for (int64_t part = 0; part < num_local_ - 1; ++part) {
      const int64_t replica = process_ * num_local_ + part;
      const int64_t begin = part_begin(summands.front(), replica);
      const int64_t end = part_begin(summands.front(), replica + 1);
      at::Tensor sum = range(sums, begin - section.begin, end - section.begin);
      sum.copy_(range(summands[part + 1], begin, end));
      for (int64_t local = part + 2; local < num_local_; ++local) {
        sum.add_(range(summands[local], begin, end));
      }
    }
  }
}

void Ring::add_passing_block(const Block& block, const std::vector<Summands>& tensors,
                             int64_t buffer, bool is_first) {
  const int64_t owner = (process_ - 1 + num_processes_) % num_processes_;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Summands& summands = tensors[i];
    const Section& section = block.sections[i];
    const at::Tensor sums = piece(buffer, section, summands.front());
    // Where the owner of the block begins no sum, the first summand here does.
    const int64_t begun =
        is_first ? part_begin(summands.front(), (owner + 1) * num_local_ - 1) : section.end;
    range(sums, begun - section.begin, section.end - section.begin)
        .copy_(range(summands.front(), begun, section.end));
    range(sums, 0, begun - section.begin).add_(range(summands.front(), section.begin, begun));
    for (int64_t local = 1; local < num_local_; ++local) {
      at::Tensor(sums).add_(range(summands[local], section.begin, section.end));
    }
  }
}

void Ring::finish_own_block(const Block& block, const std::vector<Summands>& tensors,
                            int64_t buffer) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Summands& summands = tensors[i];
    const Section& section = block.sections[i];
    const at::Tensor sums = piece(buffer, section, summands.front());
    for (int64_t part = 0; part < num_local_; ++part) {
      const int64_t replica = process_ * num_local_ + part;
      const int64_t begin = part_begin(summands.front(), replica);
      const int64_t end = part_begin(summands.front(), replica + 1);
      at::Tensor sum = range(sums, begin - section.begin, end - section.begin);
      for (int64_t local = 0; local <= part; ++local) {
        sum.add_(range(summands[local], begin, end));
      }
    }
  }
  store(block, tensors, buffer);
}

void Ring::store(const Block& block, const std::vector<Summands>& tensors, int64_t buffer) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& target = tensors[i].front();
    const Section& section = block.sections[i];
    range(target, section.begin, section.end).copy_(piece(buffer, section, target));
  }
}

void Ring::all_gather(const std::vector<Block>& blocks, const std::vector<Summands>& tensors) {
  int64_t buffer = num_processes_ % 2;  // where the own block's sums are
  for (int64_t step = 1; step < num_processes_; ++step) {
    const int64_t given = (process_ - step + 1 + num_processes_) % num_processes_;
    const Block& taken = blocks[(given - 1 + num_processes_) % num_processes_];
    send(buffer, blocks[given].num_bytes);
    buffer = 1 - buffer;
    finish_sending(buffer);
    receive(buffer, taken.num_bytes);
    store(taken, tensors, buffer);
  }
  finish_sending(0);
  finish_sending(1);
}

void Ring::send(int64_t buffer, int64_t num_bytes) {
  const int64_t next = (process_ + 1) % num_processes_;
  sending_[buffer] = peers_.send(buffers_[buffer].narrow(0, 0, num_bytes), next, tag_);
}

void Ring::receive(int64_t buffer, int64_t num_bytes) {
  const int64_t previous = (process_ - 1 + num_processes_) % num_processes_;
  peers_.wait(peers_.receive(buffers_[buffer].narrow(0, 0, num_bytes), previous, tag_));
}

void Ring::finish_sending(int64_t buffer) {
  if (sending_[buffer] == nullptr) return;
  const Peers::MessagePtr message = std::move(sending_[buffer]);
  sending_[buffer] = nullptr;
  peers_.wait(message);
}

}  // namespace poptorch_emu
