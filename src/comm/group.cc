#include "comm/group.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/collective_log.h"
#include "comm/tensor_text.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

void check_tensor(const at::Tensor& tensor, CollectiveKind kind, std::string_view label) {
  MEGALITH_CHECK(tensor.defined(), "{} '{}': the tensor is undefined", name_of(kind), label);
  MEGALITH_CHECK(tensor.is_contiguous(), "{} '{}': {} is not contiguous", name_of(kind), label, text_of(tensor));
}

void check_pair(const at::Tensor& out, const at::Tensor& in, CollectiveKind kind, std::string_view label) {
  check_tensor(out, kind, label);
  check_tensor(in, kind, label);
  MEGALITH_CHECK(out.scalar_type() == in.scalar_type() && out.device() == in.device(),
                 "{} '{}': out is {} on {}, in is {} on {}", name_of(kind), label, text_of(out), out.device().str(),
                 text_of(in), in.device().str());
}

// whole (parts * n, …), part (n, …); a scalar is one row.
void check_parts(const at::Tensor& whole, const at::Tensor& part, int parts, CollectiveKind kind,
                 std::string_view label) {
  std::vector<int64_t> expected = part.dim() == 0 ? std::vector<int64_t>{1} : part.sizes().vec();
  expected[0] *= parts;
  MEGALITH_CHECK(whole.sizes().vec() == expected, "{} '{}' over {} ranks: {} is not {} times {}", name_of(kind), label,
                 parts, text_of(whole), parts, text_of(part));
}

void check_reducible(const at::Tensor& tensor, ReduceOp op, CollectiveKind kind, std::string_view label) {
  const at::ScalarType dtype = tensor.scalar_type();
  const bool is_floating = dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  MEGALITH_CHECK(is_floating || (op != ReduceOp::kAvg && c10::isIntegralType(dtype, /*includeBool=*/false)),
                 "{} '{}': {} has no {}", name_of(kind), label, c10::toString(dtype), name_of(op));
}

void check_splits(const at::Tensor& tensor, std::vector<int64_t>& splits, int size, std::string_view what,
                  std::string_view label) {
  MEGALITH_CHECK(tensor.dim() > 0, "all_to_all '{}': {} is a scalar", label, what);
  if (splits.empty()) splits.assign(static_cast<size_t>(size), div_exact(tensor.size(0), size));
  const int64_t total = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  const bool none_negative = std::all_of(splits.begin(), splits.end(), [](int64_t rows) { return rows >= 0; });
  MEGALITH_CHECK(static_cast<int>(splits.size()) == size && none_negative && total == tensor.size(0),
                 "all_to_all '{}' over {} ranks: splits [{}] of {} do not fit {}", label, size, fmt::join(splits, ", "),
                 what, text_of(tensor));
}

}  // namespace

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "?";
}

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kSendReceive:
      return "send_receive";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "?";
}

std::string CollectiveRecord::text() const {
  return fmt::format("{} {} {} {}", name_of(kind), axis, label, format_bytes(bytes));
}

struct Work::Shared {
  std::shared_ptr<WorkState> state;  // null: done when issued
  std::shared_ptr<const CollectiveRecord> record;
  TraceHook hook;
  std::shared_ptr<CollectiveLog> log;
  std::shared_ptr<LoggedCollective> logged;
};

Work::Work(std::shared_ptr<WorkState> state, std::shared_ptr<const CollectiveRecord> record, TraceHook hook,
           std::shared_ptr<CollectiveLog> log, std::shared_ptr<LoggedCollective> logged) {
  if (!state && !hook) return;
  shared_ = std::make_shared<Shared>(
      Shared{std::move(state), std::move(record), std::move(hook), std::move(log), std::move(logged)});
}

void Work::wait() {
  if (!shared_) return;
  if (shared_->state && shared_->log) {
    LoggedWait logged(*shared_->log, shared_->logged);
    shared_->state->wait();
    logged.end(shared_->state->completion());
  } else if (shared_->state) {
    shared_->state->wait();
  }
  if (shared_->hook) std::exchange(shared_->hook, nullptr)(TracePhase::kEnd, *shared_->record);
}

bool Work::is_done() const { return !shared_ || !shared_->state || shared_->state->is_done(); }

Group::Group(std::vector<int> ranks, int rank, std::string axis)
    : ranks_(std::move(ranks)), rank_(rank), axis_(std::move(axis)) {
  MEGALITH_CHECK(rank_ >= 0 && rank_ < size(), "rank {} of group {} of {} ranks", rank_, axis_, size());
}

void Group::set_collective_log(std::shared_ptr<CollectiveLog> log) {
  log_ = std::move(log);
  logged_ranks_ = std::make_shared<const std::vector<int>>(ranks_);
}

Group::Record Group::make_record(CollectiveKind kind, std::string_view label, int64_t bytes) {
  auto record = std::make_shared<CollectiveRecord>();
  record->sequence = next_sequence_++;
  record->kind = kind;
  record->axis = axis_;
  record->label = label;
  record->group_rank = rank_;
  record->group_size = size();
  record->bytes = bytes;
  if (trace_hook_) trace_hook_(TracePhase::kStart, *record);
  return record;
}

template <typename Start>
Work Group::issue(CollectiveKind kind, std::string_view label, int64_t bytes, const Start& start,
                  const Ranks& participants) {
  const Record record = make_record(kind, label, bytes);
  CollectiveLog::Ticket ticket;
  if (log_) ticket = log_->begin(record, participants ? participants : logged_ranks_);
  State state;
  try {
    state = start(record);
  } catch (...) {
    if (log_) log_->failed(ticket);
    throw;
  }
  if (log_) log_->issued(ticket, state);
  Work work(std::move(state), record, trace_hook_, log_, std::move(ticket));
  if (is_blocking_) work.wait();
  return work;
}

Work Group::all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view label) {
  check_tensor(tensor, CollectiveKind::kAllReduce, label);
  check_reducible(tensor, op, CollectiveKind::kAllReduce, label);
  return issue(CollectiveKind::kAllReduce, label, bytes_of(tensor),
               [&](const Record& record) { return start_all_reduce(tensor, op, record); });
}

Work Group::all_gather(const at::Tensor& out, const at::Tensor& in, std::string_view label) {
  check_pair(out, in, CollectiveKind::kAllGather, label);
  check_parts(out, in, size(), CollectiveKind::kAllGather, label);
  return issue(CollectiveKind::kAllGather, label, bytes_of(out),
               [&](const Record& record) { return start_all_gather(out, in, record); });
}

Work Group::reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, std::string_view label) {
  check_pair(out, in, CollectiveKind::kReduceScatter, label);
  check_parts(in, out, size(), CollectiveKind::kReduceScatter, label);
  check_reducible(in, op, CollectiveKind::kReduceScatter, label);
  return issue(CollectiveKind::kReduceScatter, label, bytes_of(in),
               [&](const Record& record) { return start_reduce_scatter(out, in, op, record); });
}

Work Group::all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                       const std::vector<int64_t>& in_splits, std::string_view label) {
  check_pair(out, in, CollectiveKind::kAllToAll, label);
  std::vector<int64_t> out_rows = out_splits, in_rows = in_splits;
  check_splits(out, out_rows, size(), "out", label);
  check_splits(in, in_rows, size(), "in", label);
  MEGALITH_CHECK(out.sizes().slice(1) == in.sizes().slice(1), "all_to_all '{}': rows of out {} and in {} differ", label,
                 text_of(out), text_of(in));
  return issue(CollectiveKind::kAllToAll, label, std::max(bytes_of(out), bytes_of(in)),
               [&](const Record& record) { return start_all_to_all(out, in, out_rows, in_rows, record); });
}

Work Group::broadcast(const at::Tensor& tensor, int root, std::string_view label) {
  check_tensor(tensor, CollectiveKind::kBroadcast, label);
  MEGALITH_CHECK(root >= 0 && root < size(), "broadcast '{}': root {} in a group of {}", label, root, size());
  return issue(CollectiveKind::kBroadcast, label, bytes_of(tensor),
               [&](const Record& record) { return start_broadcast(tensor, root, record); });
}

Work Group::send_receive(std::vector<Transfer> transfers, std::string_view label) {
  int64_t bytes = 0;
  for (const Transfer& transfer : transfers) {
    check_tensor(transfer.tensor, CollectiveKind::kSendReceive, label);
    MEGALITH_CHECK(transfer.peer >= 0 && transfer.peer < size(), "send_receive '{}': peer {} in a group of {}", label,
                   transfer.peer, size());
    bytes += bytes_of(transfer.tensor);
  }
  Ranks participants;
  if (log_) {
    std::vector<int> ranks = {ranks_[static_cast<size_t>(rank_)]};
    for (const Transfer& transfer : transfers) ranks.push_back(ranks_[static_cast<size_t>(transfer.peer)]);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    participants = std::make_shared<const std::vector<int>>(std::move(ranks));
  }
  return issue(
      CollectiveKind::kSendReceive, label, bytes,
      [&](const Record& record) { return start_send_receive(transfers, record); }, participants);
}

Work Group::barrier(std::string_view label) {
  return issue(CollectiveKind::kBarrier, label, 0, [&](const Record& record) { return start_barrier(record); });
}

at::Tensor Group::gathered(const at::Tensor& in, std::string_view label) {
  std::vector<int64_t> shape = in.dim() == 0 ? std::vector<int64_t>{1} : in.sizes().vec();
  shape[0] *= size();
  const at::Tensor out = at::empty(shape, in.options().requires_grad(false));
  all_gather(out, in, label).wait();
  return out;
}

at::Tensor Group::reduce_scattered(const at::Tensor& in, ReduceOp op, std::string_view label) {
  MEGALITH_CHECK(in.dim() > 0, "reduce_scatter '{}': in is a scalar", label);
  std::vector<int64_t> shape = in.sizes().vec();
  shape[0] = div_exact(shape[0], size());
  const at::Tensor out = at::empty(shape, in.options().requires_grad(false));
  reduce_scatter(out, in, op, label).wait();
  return out;
}

at::Tensor Group::exchanged(const at::Tensor& in, const std::vector<int64_t>& out_splits,
                            const std::vector<int64_t>& in_splits, std::string_view label) {
  std::vector<int64_t> shape = in.sizes().vec();
  if (!out_splits.empty()) shape.at(0) = std::accumulate(out_splits.begin(), out_splits.end(), int64_t{0});
  const at::Tensor out = at::empty(shape, in.options().requires_grad(false));
  all_to_all(out, in, out_splits, in_splits, label).wait();
  return out;
}

double Group::reduced(double value, ReduceOp op, std::string_view label) {
  const at::Tensor tensor = at::full({}, value, at::TensorOptions().dtype(at::kDouble).device(device()));
  all_reduce(tensor, op, label).wait();
  return tensor.item<double>();
}

}  // namespace megalith
