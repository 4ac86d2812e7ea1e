// A group of ranks and its collectives, with interchangeable back ends: SingleGroup (one rank), ThreadGroup (ranks as
// threads, for tests), c10d and a fake one.
//
// Collectives are asynchronous: they return once issued; until wait(), inputs must stay untouched and outputs unread.
// (An unconnected group's first one returns when all its ranks have reached it.) All ranks of a group issue the same
// collectives in the same order, also across groups that share a communicator. Labels name the tensor moved, for the
// trace, the watchdog and errors; the group adds its axis.
//
// Tensors are contiguous, and ranks agree on dtype and shape. Autograd records nothing here: nn/'s Functions declare
// the gradients. A group of size one only copies between distinct buffers, so callers need no "if parallel".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class ReduceOp { kSum, kAvg, kMax, kMin };

enum class CollectiveKind { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kSendReceive, kBarrier };

std::string_view name_of(ReduceOp op);          // "sum", …
std::string_view name_of(CollectiveKind kind);  // "all_reduce", …

struct CollectiveRecord {
  int64_t sequence = 0;  // counts the collectives of this group on this rank, from 0
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string axis;   // "tp", "dp_cp", …
  std::string label;
  int group_rank = 0;
  int group_size = 1;
  int64_t bytes = 0;  // the larger of input and output on this rank

  std::string text() const;  // "all_gather tp mlp.fc1.weight 32.0 MiB"
};

enum class TracePhase { kStart, kEnd };  // issued; first wait() returned

// Called on the thread that issues or waits.
using TraceHook = std::function<void(TracePhase, const CollectiveRecord&)>;

class WorkState {
 public:
  virtual ~WorkState() = default;
  // Returns when results may be used: on a CPU, when they are there; on an accelerator, once the current stream is
  // ordered after them. Throws what the collective failed with. May be called again.
  virtual void wait() = 0;
  virtual bool is_done() = 0;
  // Called after wait() by the same thread. The result may be asked from any thread whether an accelerator has passed
  // the end of the collective; it holds no tensor. Empty: wait() itself waited.
  virtual std::function<bool()> completion() { return {}; }
};

class CollectiveLog;
struct LoggedCollective;

// The handle of a collective in flight. Copies share it; a default one is done.
class [[nodiscard]] Work {
 public:
  Work() = default;
  // log and logged: null without a log
  Work(std::shared_ptr<WorkState> state, std::shared_ptr<const CollectiveRecord> record, TraceHook hook,
       std::shared_ptr<CollectiveLog> log = nullptr, std::shared_ptr<LoggedCollective> logged = nullptr);

  void wait();
  bool is_done() const;  // never blocks

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// One part of a batched send/receive. The n-th send between two ranks matches the n-th receive, and their tags must be
// equal: NCCL matches by order, Gloo by tag.
struct Transfer {
  at::Tensor tensor;  // contiguous; sender and receiver agree on shape and dtype
  int peer = 0;       // rank in the group; may be the rank itself
  bool is_send = false;
  int tag = 0;

  static Transfer send(at::Tensor tensor, int peer, int tag = 0) { return {std::move(tensor), peer, true, tag}; }
  static Transfer receive(at::Tensor tensor, int peer, int tag = 0) { return {std::move(tensor), peer, false, tag}; }
};

class Group {
 public:
  // ranks  world ranks of the members, in group order
  // rank   this rank's position among them
  // axis   name of the mesh axis (or axes): "tp", "dp_cp"
  Group(std::vector<int> ranks, int rank, std::string axis);
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::string& axis() const { return axis_; }
  const std::vector<int>& ranks() const { return ranks_; }
  bool is_first() const { return rank_ == 0; }
  bool is_last() const { return rank_ + 1 == size(); }

  // Reduces tensor in place on every rank. The single and thread back ends round sums of bf16 and fp16 once (NCCL and
  // Gloo at every hop). kAvg needs a floating dtype.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view label);

  // out (size * n, …) = the ranks' in (n, …) concatenated in rank order; a scalar in gives out (size). in may be this
  // rank's rows of out (in place).
  Work all_gather(const at::Tensor& out, const at::Tensor& in, std::string_view label);

  // out (n, …) = rows [rank * n, (rank + 1) * n) of the reduced in (size * n, …); a scalar out takes in (size). out may
  // be this rank's rows of in (in place): only those rows are defined afterwards.
  Work reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, std::string_view label);

  // Rows of dim 0: in_splits[r] rows of in go to rank r, out_splits[r] rows of out come from rank r, both in rank
  // order; zero rows are fine. Both empty: equal parts. out and in do not overlap.
  Work all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                  const std::vector<int64_t>& in_splits, std::string_view label);

  // Replaces everyone's tensor by that of rank root (in the group).
  Work broadcast(const at::Tensor& tensor, int root, std::string_view label);

  // All parts are in flight together, so neighbours exchange without deadlock. Only the named peers take part; this
  // does not count as a collective of the whole group.
  Work send_receive(std::vector<Transfer> transfers, std::string_view label);

  // wait() returns when every rank has issued it.
  Work barrier(std::string_view label);

  // Blocking forms that allocate their result.
  at::Tensor gathered(const at::Tensor& in, std::string_view label);
  at::Tensor reduce_scattered(const at::Tensor& in, ReduceOp op, std::string_view label);
  at::Tensor exchanged(const at::Tensor& in, const std::vector<int64_t>& out_splits,
                       const std::vector<int64_t>& in_splits, std::string_view label);
  double reduced(double value, ReduceOp op, std::string_view label);

  // The device of this group's tensors; CPU by default.
  virtual at::Device device() const { return at::kCPU; }

  // Returns when all members have called it; later collectives only issue. Without it the first collective connects,
  // and must be one that every member issues. Idempotent.
  virtual void connect() {}
  virtual bool is_connected() const { return true; }

  void set_trace_hook(TraceHook hook) { trace_hook_ = std::move(hook); }
  // Logs collectives from now on, for the watchdog; see collective_log.h.
  void set_collective_log(std::shared_ptr<CollectiveLog> log);
  const std::shared_ptr<CollectiveLog>& collective_log() const { return log_; }  // null without one
  // Waits for every collective before returning it, to measure what overlap is worth; results are unchanged. Not for a
  // group whose ranks issue sends and receives in different order.
  void set_blocking(bool is_blocking) { is_blocking_ = is_blocking; }

 protected:
  friend class GroupView;  // starts collectives of another group under its own records

  // For back ends. Arguments are checked: contiguous, matching shapes, splits filled in, ranks in range. The record
  // lives as long as the Work.
  using Record = std::shared_ptr<const CollectiveRecord>;
  using State = std::shared_ptr<WorkState>;
  virtual State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) = 0;
  virtual State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) = 0;
  virtual State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                     const Record& record) = 0;
  virtual State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                                 const std::vector<int64_t>& in_splits, const Record& record) = 0;
  virtual State start_broadcast(const at::Tensor& tensor, int root, const Record& record) = 0;
  virtual State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) = 0;
  virtual State start_barrier(const Record& record) = 0;

 private:
  using Ranks = std::shared_ptr<const std::vector<int>>;
  Record make_record(CollectiveKind kind, std::string_view label, int64_t bytes);
  // Runs start(record) -> State; participants are the world ranks that take part, null for the whole group.
  template <typename Start>
  Work issue(CollectiveKind kind, std::string_view label, int64_t bytes, const Start& start,
             const Ranks& participants = nullptr);

  std::vector<int> ranks_;
  int rank_;
  std::string axis_;
  int64_t next_sequence_ = 0;
  TraceHook trace_hook_;
  std::shared_ptr<CollectiveLog> log_;
  Ranks logged_ranks_;
  bool is_blocking_ = false;
};

}  // namespace megalith
