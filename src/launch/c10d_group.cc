// A group's collectives over c10d.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "device/graph.h"
#include "launch/c10d_shared.h"

namespace megalith {
namespace {

// One collective, or a batch of transfers.
class C10dState : public WorkState {
 public:
  using OnError = std::function<std::string(const std::exception&)>;

  // Waits for one work; empty: its own wait().
  using Waiter = std::function<void(const C10dWork&)>;

  // after  run once by wait(), on a GPU in order on the current stream
  C10dState(std::vector<C10dWork> works, c10::Device device, OnError on_error, std::function<void()> after,
            Waiter waiter = {})
      : works_(std::move(works)),
        device_(device),
        on_error_(std::move(on_error)),
        after_(std::move(after)),
        waiter_(std::move(waiter)) {}

  void wait() override {
    if (!failure_.empty()) throw CommunicationError(failure_);
    try {
      for (const C10dWork& work : works_) waiter_ ? waiter_(work) : static_cast<void>(work->wait());
    } catch (const std::exception& error) {
      failure_ = on_error_(error);
      throw CommunicationError(failure_);
    }
    works_.clear();
    if (after_) {
      const at::NoGradGuard no_grad;
      std::exchange(after_, nullptr)();
    }
  }

  std::function<bool()> completion() override {
    if (device_.is_cpu()) return {};
    // The current stream waits for the collective, so an event recorded now is later. NCCL's works would keep tensors
    // alive.
    const c10::impl::VirtualGuardImpl guard(device_.type());
    const auto passed = std::make_shared<c10::Event>(device_.type());
    passed->record(guard.getStream(device_));
    // The watchdog's thread calls this.
    return [passed] { return !is_capturing_graph() && passed->query(); };
  }

  // Gloo completes sends and receives only in wait().
  bool is_done() override {
    if (is_capturing_graph()) return false;
    return std::all_of(works_.begin(), works_.end(), [](const C10dWork& work) { return work->isCompleted(); });
  }

 private:
  std::vector<C10dWork> works_;
  c10::Device device_;
  OnError on_error_;
  std::function<void()> after_;
  Waiter waiter_;
  std::string failure_;
};

c10d::ReduceOp::RedOpType op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:  // Gloo has no average: divided afterwards
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
  }
  throw InternalError("a reduction without a name");
}

// Gloo knows few dtypes.
at::Tensor as_bytes(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = tensor.detach().view(-1);
  return flat.scalar_type() == at::kByte ? flat : flat.view(at::kByte);
}

int64_t bytes_per_row(const at::Tensor& tensor) {
  int64_t bytes = static_cast<int64_t>(tensor.element_size());
  for (const int64_t size : tensor.sizes().slice(1)) bytes *= size;
  return bytes;
}

}  // namespace

C10dGroup::C10dGroup(std::vector<int> ranks, int position, std::string axis, World world)
    : Group(std::move(ranks), position, std::move(axis)),
      world_(std::move(world)),
      self_(this->axis(), world_->launch.rank) {}

void C10dGroup::connect() {
  if (!backend_) backend_ = world_->connect(ranks(), rank(), axis());
}

Group::State C10dGroup::start(const Record& record, const std::function<std::vector<C10dWork>()>& issue,
                              std::function<void()> after) {
  world_->throw_if_lost();
  connect();
  // A Work may outlive its group.
  const auto on_error = [record, ranks = ranks(), world = world_](const std::exception& error) {
    return fmt::format("{} '{}' over {} (ranks {}) failed: {}{}", name_of(record->kind), record->label, record->axis,
                       fmt::join(ranks, ", "), world->explain(ranks), fault_of(error).text());
  };
  try {
    C10dState::Waiter waiter;
    if (world_->tolerance.is_on) {
      const bool says_done = record->kind == CollectiveKind::kAllReduce || record->kind == CollectiveKind::kBroadcast;
      waiter = [world = world_, says_done](const C10dWork& work) { world->wait_unless_lost(work, says_done); };
    }
    return std::make_shared<C10dState>(issue(), world_->device, on_error, std::move(after), std::move(waiter));
  } catch (const std::exception& error) {
    throw CommunicationError(on_error(error));
  }
}

Group::State C10dGroup::start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) {
  if (tensor.numel() == 0) return nullptr;
  const at::Tensor flat = tensor.detach();
  return start(
      record,
      [&]() -> std::vector<C10dWork> {
        std::vector<at::Tensor> tensors = {flat};
        c10d::AllreduceOptions options;
        options.reduceOp = op_of(op);
        return {backend_->allreduce(tensors, options)};
      },
      [flat, op, n = size()] {
        if (op == ReduceOp::kAvg) at::Tensor(flat).div_(n);
      });
}

Group::State C10dGroup::start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) {
  if (out.numel() == 0) return nullptr;
  return start(record, [&]() -> std::vector<C10dWork> {
    at::Tensor out_bytes = as_bytes(out), in_bytes = as_bytes(in);
    return {backend_->_allgather_base(out_bytes, in_bytes, {})};
  });
}

Group::State C10dGroup::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                             const Record& record) {
  if (in.numel() == 0) return nullptr;
  const at::Tensor flat = out.detach().view(-1);
  return start(
      record,
      [&]() -> std::vector<C10dWork> {
        at::Tensor out_flat = flat, in_flat = in.detach().view(-1);
        c10d::ReduceScatterOptions options;
        options.reduceOp = op_of(op);
        return {backend_->_reduce_scatter_base(out_flat, in_flat, options)};
      },
      [flat, op, n = size()] {
        if (op == ReduceOp::kAvg) at::Tensor(flat).div_(n);
      });
}

Group::State C10dGroup::start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                         const std::vector<int64_t>& out_splits, const std::vector<int64_t>& in_splits,
                                         const Record& record) {
  const int64_t row_bytes = bytes_per_row(in);
  if (row_bytes == 0) return nullptr;
  return start(record, [&]() -> std::vector<C10dWork> {
    std::vector<int64_t> out_bytes_of = out_splits, in_bytes_of = in_splits;
    for (int64_t& rows : out_bytes_of) rows *= row_bytes;
    for (int64_t& rows : in_bytes_of) rows *= row_bytes;
    at::Tensor out_bytes = as_bytes(out), in_bytes = as_bytes(in);
    return {backend_->alltoall_base(out_bytes, in_bytes, out_bytes_of, in_bytes_of, {})};
  });
}

Group::State C10dGroup::start_broadcast(const at::Tensor& tensor, int root, const Record& record) {
  if (tensor.numel() == 0) return nullptr;
  return start(record, [&]() -> std::vector<C10dWork> {
    std::vector<at::Tensor> tensors = {as_bytes(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return {backend_->broadcast(tensors, options)};
  });
}

Group::State C10dGroup::start_send_receive(const std::vector<Transfer>& transfers, const Record& record) {
  std::vector<Transfer> own, others;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == rank()) {
      own.push_back(transfer);
      own.back().peer = 0;
    } else if (transfer.tensor.numel() > 0) {
      others.push_back(transfer);
    }
  }
  Work to_self = own.empty() ? Work() : self_.send_receive(std::move(own), record->label);
  const auto after = [to_self]() mutable { to_self.wait(); };
  if (others.empty()) {
    return std::make_shared<C10dState>(std::vector<C10dWork>{}, world_->device, C10dState::OnError{}, after);
  }
  return start(
      record,
      [&] {
        std::vector<C10dWork> works;
        // NCCL serialises transfers issued separately.
        const bool is_batch = backend_->supportsCoalescing();
        if (is_batch) backend_->startCoalescing();
        for (const Transfer& transfer : others) {
          std::vector<at::Tensor> tensors = {as_bytes(transfer.tensor)};
          const C10dWork work = transfer.is_send ? backend_->send(tensors, transfer.peer, transfer.tag)
                                                 : backend_->recv(tensors, transfer.peer, transfer.tag);
          if (!is_batch) works.push_back(work);
        }
        if (is_batch) works.push_back(backend_->endCoalescing());
        return works;
      },
      after);
}

Group::State C10dGroup::start_barrier(const Record& record) {
  return start(record, [&]() -> std::vector<C10dWork> {
    c10d::BarrierOptions options;
    if (!world_->device.is_cpu()) options.device_ids = {world_->device.index()};
    return {backend_->barrier(options)};
  });
}

}  // namespace megalith
