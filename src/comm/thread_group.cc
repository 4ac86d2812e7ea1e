// Issuing copies inputs to the meeting point and poisons outputs; wait() sleeps until all ranks have come, then makes
// this rank's results in stream order.
#include "comm/thread_group.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/tensor_text.h"
#include "comm/thread_devices.h"
#include "comm/thread_hub.h"
#include "core/error.h"

namespace megalith {
namespace {

at::Tensor copy_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().clone();
}

// Bytes that make NaN in floating types, and indices far out of range.
int poison_byte(at::ScalarType dtype) {
  if (dtype == at::kBool) return 1;
  if (dtype == at::kFloat8_e4m3fnuz || dtype == at::kFloat8_e5m2fnuz) return 0x80;  // their only NaN
  return at::isFloatingType(dtype) || at::isComplexType(dtype) ? 0xFF : 0x7B;
}

// In rank order, independent of timing; low precision in fp32, rounded once.
at::Tensor reduce(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const at::ScalarType dtype = inputs.front().scalar_type();
  const at::ScalarType wide = dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
  at::Tensor result = inputs.front().to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 1; i < inputs.size(); ++i) {
    const at::Tensor next = inputs[i].to(wide);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result.add_(next);
        break;
      case ReduceOp::kMax:
        result = at::maximum(result, next);
        break;
      case ReduceOp::kMin:
        result = at::minimum(result, next);
        break;
    }
  }
  if (op == ReduceOp::kAvg) result.div_(static_cast<int64_t>(inputs.size()));
  return result.to(dtype);
}

const at::Tensor& reduced_inputs(ThreadCollective& collective, ReduceOp op) {
  std::call_once(collective.reduce_once, [&] { collective.reduced = reduce(collective.inputs, op); });
  return collective.reduced;
}

int64_t sum_of(const std::vector<int64_t>& numbers, size_t count) {
  return std::accumulate(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(count), int64_t{0});
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const char* a_begin = static_cast<const char*>(a.const_data_ptr());
  const char* b_begin = static_cast<const char*>(b.const_data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

// A tensor that must not change until wait(): a copied input or poisoned output. view: the host's.
class Untouched {
 public:
  Untouched(at::Tensor tensor, at::Tensor view, at::Tensor copy)
      : tensor_(std::move(tensor)), view_(std::move(view)), copy_(std::move(copy)) {}

  static Untouched poisoned(at::Tensor tensor, at::Tensor view) {
    if (view.nbytes() > 0) std::memset(view.mutable_data_ptr(), poison_byte(view.scalar_type()), view.nbytes());
    return Untouched(std::move(tensor), std::move(view), at::Tensor());
  }

  void check(const std::string& what) const {
    const size_t needed = static_cast<size_t>(tensor_.storage_offset()) * tensor_.element_size() + tensor_.nbytes();
    MEGALITH_CHECK(tensor_.nbytes() == 0 || tensor_.storage().nbytes() >= needed,
                   "{}: the storage of a buffer was released before wait()", what);
    if (copy_.defined()) {
      const bool is_same =
          view_.nbytes() == 0 || std::memcmp(view_.const_data_ptr(), copy_.const_data_ptr(), view_.nbytes()) == 0;
      MEGALITH_CHECK(is_same, "{}: its input {} was changed before wait()", what, text_of(tensor_));
    } else {
      const auto* bytes = static_cast<const unsigned char*>(view_.const_data_ptr());
      const auto poison = static_cast<unsigned char>(poison_byte(view_.scalar_type()));
      const bool is_same = std::all_of(bytes, bytes + view_.nbytes(), [=](unsigned char b) { return b == poison; });
      MEGALITH_CHECK(is_same, "{}: its output {} was written before wait()", what, text_of(tensor_));
    }
  }

 private:
  at::Tensor tensor_, view_, copy_;
};

void in_stream_order(const ThreadHub& hub, at::Device device, std::function<void()> work) {
  const ThreadDevices* devices = hub.settings().devices;
  if (devices == nullptr) return work();
  devices->in_stream_order(device, std::move(work));
}

std::string name_of(const CollectiveRecord& record) {
  return fmt::format("{} {} '{}'", name_of(record.kind), record.axis, record.label);
}

}  // namespace

struct ThreadGroup::Part {
  std::string detail;  // equal on all ranks, as kind and label
  at::Tensor input;    // may be undefined
  at::Tensor output;   // may be undefined
  std::vector<int64_t> in_splits = {}, out_splits = {};
  double moved_bytes = 0;  // for the delay model
  // Run by wait() without the lock; out: the host's view.
  std::function<void(ThreadCollective&, const at::Tensor& out)> fill_output;
};

class ThreadGroup::CollectiveWork : public WorkState {
 public:
  // finish  checks buffers, makes results
  CollectiveWork(std::shared_ptr<ThreadHub> hub, std::shared_ptr<ThreadCollective> collective, std::vector<int> ranks,
                 int position, at::Device device, Record record, std::function<void()> finish)
      : hub_(std::move(hub)),
        collective_(std::move(collective)),
        ranks_(std::move(ranks)),
        position_(position),
        device_(device),
        record_(std::move(record)),
        finish_(std::move(finish)) {}

  void wait() override {
    if (!collective_) return;
    {
      ThreadHub::Lock lock = hub_->lock();
      hub_->wait(
          lock, ranks_[static_cast<size_t>(position_)], [this] { return collective_->ready_at; },
          [this] { return what_for(); });
    }
    in_stream_order(*hub_, device_, finish_);
    finish_ = nullptr;
    collective_.reset();
  }

  bool is_done() override {
    if (!collective_) return true;
    const ThreadHub::Lock lock = hub_->lock();
    return collective_->ready_at && *collective_->ready_at <= ThreadHub::Clock::now();
  }

 private:
  std::string what_for() const {
    std::vector<int> missing;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const auto& arrived = collective_->arrived;
      if (std::find(arrived.begin(), arrived.end(), static_cast<int>(i)) == arrived.end()) missing.push_back(ranks_[i]);
    }
    return fmt::format("{} (not issued by rank {})", name_of(*record_), fmt::join(missing, ", "));
  }

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<ThreadCollective> collective_;  // null once done
  std::vector<int> ranks_;
  int position_;
  at::Device device_;
  Record record_;
  std::function<void()> finish_;
};

class ThreadGroup::TransferWork : public WorkState {
 public:
  struct Part {
    std::shared_ptr<ThreadMessage> message;
    Transfer transfer;
    at::Tensor view;
    Untouched buffer;
    std::string text;  // "message 3 from rank 1"
  };

  TransferWork(std::shared_ptr<ThreadHub> hub, int world_rank, at::Device device, Record record)
      : hub_(std::move(hub)), world_rank_(world_rank), device_(device), record_(std::move(record)) {}

  void add(Part part) { parts_.push_back(std::move(part)); }

  void wait() override {
    if (parts_.empty()) return;
    {
      ThreadHub::Lock lock = hub_->lock();
      hub_->wait(
          lock, world_rank_, [this] { return ready_at(); }, [this] { return what_for(); });
    }
    in_stream_order(*hub_, device_, [parts = parts_, record = record_] {
      const at::NoGradGuard no_grad;
      for (const Part& part : parts) part.buffer.check(fmt::format("{}, {}", name_of(*record), part.text));
      for (const Part& part : parts) {
        if (!part.transfer.is_send) part.view.copy_(part.message->copy);
      }
    });
    parts_.clear();
  }

  bool is_done() override {
    if (parts_.empty()) return true;
    const ThreadHub::Lock lock = hub_->lock();
    const std::optional<ThreadHub::Time> ready = ready_at();
    return ready && *ready <= ThreadHub::Clock::now();
  }

 private:
  // Null until all are matched.
  std::optional<ThreadHub::Time> ready_at() const {
    ThreadHub::Time latest{};
    for (const Part& part : parts_) {
      if (!part.message->ready_at) return std::nullopt;
      latest = std::max(latest, *part.message->ready_at);
    }
    return latest;
  }

  std::string what_for() const {
    std::vector<std::string> open;
    for (const Part& part : parts_) {
      if (!part.message->ready_at) open.push_back(part.text);
    }
    return fmt::format("{} ({})", name_of(*record_), fmt::join(open, "; "));
  }

  std::shared_ptr<ThreadHub> hub_;
  int world_rank_;
  at::Device device_;
  Record record_;
  std::vector<Part> parts_;
};

ThreadGroup::ThreadGroup(std::vector<int> ranks, int position, std::string axis, std::shared_ptr<ThreadHub> hub,
                         std::shared_ptr<ThreadMeeting> meeting)
    : Group(std::move(ranks), position, std::move(axis)), hub_(std::move(hub)), meeting_(std::move(meeting)) {}

at::Device ThreadGroup::device() const {
  const ThreadDevices* devices = hub_->settings().devices;
  return devices == nullptr ? at::kCPU : devices->device_of(ranks()[static_cast<size_t>(rank())]);
}

at::Tensor ThreadGroup::host_view(const at::Tensor& tensor, const Record& record) const {
  if (!tensor.defined()) return tensor;
  MEGALITH_CHECK(tensor.device() == device(), "{}: this rank's tensors are on {}, this one is on {}", name_of(*record),
                 device().str(), tensor.device().str());
  return tensor.is_cpu() ? tensor : hub_->settings().devices->host_view(tensor);
}

Group::State ThreadGroup::join(const Part& part, const Record& record) {
  const size_t position = static_cast<size_t>(rank());
  const int64_t number = next_collective_++;
  const std::string description =
      fmt::format("{} '{}'{}{}", name_of(record->kind), record->label, part.detail.empty() ? "" : " ", part.detail);
  const at::Tensor in = host_view(part.input, record), out = host_view(part.output, record);

  // Copies without the lock, the input first: the output may overlap it.
  std::vector<Untouched> buffers;
  at::Tensor copy;
  if (in.defined()) {
    copy = copy_of(in);
    if (!out.defined() || !overlap(in, out)) buffers.emplace_back(part.input, in, copy);
  }
  if (out.defined()) buffers.push_back(Untouched::poisoned(part.output, out));

  const ThreadHub::Lock lock = hub_->lock();
  hub_->check_alive(lock);
  std::shared_ptr<ThreadCollective>& place = meeting_->open[number];
  if (!place) place = std::make_shared<ThreadCollective>(static_cast<size_t>(size()));
  const std::shared_ptr<ThreadCollective> collective = place;
  if (collective->arrived.empty()) {
    collective->description = description;
    collective->axis = record->axis;
    collective->first = rank();
  }
  const bool is_same_axis = collective->axis == record->axis;
  MEGALITH_CHECK(is_same_axis && collective->description == description,
                 "ranks differ in collective {} of group {} (ranks {}): rank {} issued {}{}, rank {} issued {}{}",
                 number, is_same_axis ? record->axis : axis(), fmt::join(ranks(), ", "),
                 ranks()[static_cast<size_t>(collective->first)], collective->description,
                 is_same_axis ? "" : " over " + collective->axis, ranks()[position], description,
                 is_same_axis ? "" : " over " + record->axis);
  if (part.output.defined() && part.output.nbytes() > 0) {
    const char* begin = static_cast<const char*>(part.output.const_data_ptr());
    const int64_t bytes = static_cast<int64_t>(part.output.nbytes());
    for (const int other : collective->arrived) {
      const auto& [other_begin, other_bytes] = collective->outputs[static_cast<size_t>(other)];
      MEGALITH_CHECK(begin >= other_begin + other_bytes || other_begin >= begin + bytes,
                     "{}: ranks {} and {} pass the same memory for their outputs", name_of(*record),
                     ranks()[static_cast<size_t>(other)], ranks()[position]);
    }
    collective->outputs[position] = {begin, bytes};
  }
  collective->inputs[position] = copy;
  collective->in_splits[position] = part.in_splits;
  collective->out_splits[position] = part.out_splits;
  collective->arrived.push_back(rank());
  if (static_cast<int>(collective->arrived.size()) == size()) {
    collective->ready_at = hub_->transfer_end(part.moved_bytes, meeting_->busy_until);
    meeting_->open.erase(number);
  }
  hub_->progress(lock);
  const auto finish = [collective, record, out, buffers = std::move(buffers), fill_output = part.fill_output] {
    for (const Untouched& buffer : buffers) buffer.check(name_of(*record));
    if (!fill_output) return;
    const at::NoGradGuard no_grad;
    fill_output(*collective, out);
  };
  return std::make_shared<CollectiveWork>(hub_, collective, ranks(), rank(), device(), record, finish);
}

Group::State ThreadGroup::start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) {
  Part part{.detail = fmt::format("{} {}", text_of(tensor), name_of(op)), .input = tensor, .output = tensor};
  part.moved_bytes = 2.0 * (size() - 1) / size() * static_cast<double>(tensor.nbytes());
  part.fill_output = [op](ThreadCollective& all, const at::Tensor& out) { out.copy_(reduced_inputs(all, op)); };
  return join(part, record);
}

Group::State ThreadGroup::start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) {
  Part part{.detail = text_of(in), .input = in, .output = out};
  part.moved_bytes = (size() - 1.0) * static_cast<double>(in.nbytes());
  part.fill_output = [](ThreadCollective& collective, const at::Tensor& out) {
    const int64_t n = collective.inputs.front().numel();
    for (size_t r = 0; r < collective.inputs.size(); ++r) {
      out.view(-1).narrow(0, static_cast<int64_t>(r) * n, n).copy_(collective.inputs[r].view(-1));
    }
  };
  return join(part, record);
}

Group::State ThreadGroup::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                               const Record& record) {
  Part part{.detail = fmt::format("{} {}", text_of(in), name_of(op)), .input = in, .output = out};
  part.moved_bytes = (size() - 1.0) * static_cast<double>(out.nbytes());
  part.fill_output = [op, position = rank()](ThreadCollective& collective, const at::Tensor& out) {
    out.view(-1).copy_(reduced_inputs(collective, op).view(-1).narrow(0, position * out.numel(), out.numel()));
  };
  return join(part, record);
}

Group::State ThreadGroup::start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                           const std::vector<int64_t>& out_splits,
                                           const std::vector<int64_t>& in_splits, const Record& record) {
  MEGALITH_CHECK(out.nbytes() == 0 || in.nbytes() == 0 || !overlap(out, in), "{}: in and out overlap",
                 name_of(*record));
  // Rows may differ between ranks.
  Part part{.detail = fmt::format("rows of {}", text_of(in.scalar_type(), in.sizes().slice(1))),
            .input = in,
            .output = out,
            .in_splits = in_splits,
            .out_splits = out_splits};
  part.moved_bytes = static_cast<double>(std::max(in.nbytes(), out.nbytes()));
  part.fill_output = [position = static_cast<size_t>(rank()), ranks = ranks(), record](ThreadCollective& all,
                                                                                       const at::Tensor& out) {
    int64_t row = 0;
    for (size_t from = 0; from < all.inputs.size(); ++from) {
      const int64_t sent = all.in_splits[from][position], expected = all.out_splits[position][from];
      MEGALITH_CHECK(sent == expected, "{}: rank {} sends {} row(s) to rank {}, which expects {}", name_of(*record),
                     ranks[from], sent, ranks[position], expected);
      out.narrow(0, row, expected).copy_(all.inputs[from].narrow(0, sum_of(all.in_splits[from], position), sent));
      row += expected;
    }
  };
  return join(part, record);
}

Group::State ThreadGroup::start_broadcast(const at::Tensor& tensor, int root, const Record& record) {
  Part part{.detail = fmt::format("{} from rank {}", text_of(tensor), ranks()[static_cast<size_t>(root)])};
  part.moved_bytes = static_cast<double>(tensor.nbytes());
  if (rank() == root) {
    part.input = tensor;
  } else {
    part.output = tensor;
    part.fill_output = [root](ThreadCollective& collective, const at::Tensor& out) {
      out.copy_(collective.inputs[static_cast<size_t>(root)]);
    };
  }
  return join(part, record);
}

Group::State ThreadGroup::start_barrier(const Record& record) { return join(Part{}, record); }

Group::State ThreadGroup::start_send_receive(const std::vector<Transfer>& transfers, const Record& record) {
  const auto world_rank = [&](int position) { return ranks()[static_cast<size_t>(position)]; };
  const auto work = std::make_shared<TransferWork>(hub_, world_rank(rank()), device(), record);

  // Copy sends before poisoning receives: a rank may send to itself in place.
  std::vector<at::Tensor> views, copies;
  for (const Transfer& transfer : transfers) {
    views.push_back(host_view(transfer.tensor, record));
    copies.push_back(transfer.is_send ? copy_of(views.back()) : at::Tensor());
  }
  std::vector<Untouched> buffers;
  for (size_t i = 0; i < transfers.size(); ++i) {
    buffers.push_back(transfers[i].is_send ? Untouched(transfers[i].tensor, views[i], copies[i])
                                           : Untouched::poisoned(transfers[i].tensor, views[i]));
  }

  const ThreadHub::Lock lock = hub_->lock();
  hub_->check_alive(lock);
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    const std::pair<int, int> ends =
        transfer.is_send ? std::pair(rank(), transfer.peer) : std::pair(transfer.peer, rank());
    ThreadMeeting::Channel& channel = meeting_->channels[ends];
    const int64_t number = transfer.is_send ? channel.num_sent++ : channel.num_expected++;
    std::shared_ptr<ThreadMessage>& place = channel.open[number];
    if (!place) place = std::make_shared<ThreadMessage>();
    const std::shared_ptr<ThreadMessage> message = place;
    if (transfer.is_send) {
      message->copy = copies[i];
      message->send_axis = record->axis;
      message->send_tag = transfer.tag;
    } else {
      message->is_expected = true;
      message->receive_axis = record->axis;
      message->receive_tag = transfer.tag;
      message->shape = transfer.tensor.sizes().vec();
      message->dtype = transfer.tensor.scalar_type();
    }
    const std::string text = fmt::format("message {} from rank {} to rank {}, tag {}", number, world_rank(ends.first),
                                         world_rank(ends.second), transfer.tag);
    if (message->copy.defined() && message->is_expected) {
      MEGALITH_CHECK(
          message->send_axis == message->receive_axis && message->send_tag == message->receive_tag &&
              message->copy.sizes() == message->shape && message->copy.scalar_type() == message->dtype,
          "group {}: message {} is sent by rank {} as {} with tag {} over {}, and expected by rank {} as {} with tag "
          "{} over {} (here: {})",
          axis(), number, world_rank(ends.first), text_of(message->copy), message->send_tag, message->send_axis,
          world_rank(ends.second), text_of(message->dtype, message->shape), message->receive_tag, message->receive_axis,
          name_of(*record));
      message->ready_at = hub_->transfer_end(static_cast<double>(message->copy.nbytes()), channel.busy_until);
      channel.open.erase(number);
    }
    work->add({message, transfer, views[i], buffers[i], text});
  }
  hub_->progress(lock);
  return work;
}

}  // namespace megalith
