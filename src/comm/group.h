// A group of ranks and the collectives they run together. Back ends differ only behind this interface: SingleGroup (one
// rank), ThreadGroup (ranks as threads, for tests), c10d and a fake one.
//
// Every collective is asynchronous: it returns once it is issued; inputs must stay untouched and outputs must not be
// read until wait(). (The first one of a group that is not connected yet returns when all its ranks have come to it.)
// All ranks of a group issue the same collectives in the same order, also across groups that share a communicator.
// Each carries a label, the name of the tensor it moves, for the trace, the watchdog and error messages; the group adds
// its axis.
//
// Tensors are contiguous, and the ranks agree on dtype and shape. No collective is recorded by autograd: the Functions
// in nn/ declare the gradients. A group of size one moves no data between ranks, but copies where there are two
// buffers, so that callers need no "if parallel".
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

// One collective as the trace and error messages see it.
struct CollectiveRecord {
  int64_t sequence = 0;  // counts the collectives of this group on this rank, from 0
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string axis;   // "tp", "dp_cp", …
  std::string label;  // the tensor's name
  int group_rank = 0;
  int group_size = 1;
  int64_t bytes = 0;  // the larger of what goes in and what comes out on this rank

  std::string text() const;  // "all_gather tp mlp.fc1.weight 32.0 MiB"
};

enum class TracePhase { kStart, kEnd };  // issued; first wait() returned

// Called on the thread that issues or waits.
using TraceHook = std::function<void(TracePhase, const CollectiveRecord&)>;

// What a back end returns for a collective under way.
class WorkState {
 public:
  virtual ~WorkState() = default;
  // Returns when results may be used: on a CPU, when they are there; on an accelerator, when the current stream will
  // not run further work before they are there. Throws what the collective failed with. May be called again.
  virtual void wait() = 0;
  virtual bool is_done() = 0;
  // Called after wait() by the same thread: asks from then on, from any thread, whether an accelerator has passed the
  // end of the collective; holds no tensor. Empty: wait() returned no earlier.
  virtual std::function<bool()> completion() { return {}; }
};

class CollectiveLog;
struct LoggedCollective;

// The handle of a collective under way. Copies share it; a default one is done.
class [[nodiscard]] Work {
 public:
  Work() = default;
  // log and logged: null when nobody keeps a log
  Work(std::shared_ptr<WorkState> state, std::shared_ptr<const CollectiveRecord> record, TraceHook hook,
       std::shared_ptr<CollectiveLog> log = nullptr, std::shared_ptr<LoggedCollective> logged = nullptr);

  void wait();           // see WorkState::wait()
  bool is_done() const;  // never blocks

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// One part of a batched send/receive. The n-th send from one rank to another meets the n-th receive there, and their
// tags must be equal: NCCL matches by order, Gloo by tag, and so both give the same.
struct Transfer {
  at::Tensor tensor;  // contiguous; the receiver's has the sender's shape and dtype
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
  // axis   the name of the mesh axis (or axes) it lies on: "tp", "dp_cp"
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

  // Reduces tensor over the group, in place, in every rank. Sums of bf16 and fp16 are rounded once in the single and
  // thread back ends (NCCL and Gloo round at every hop). kAvg needs a floating dtype.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view label);

  // out (size * n, …) = the ranks' in (n, …) behind one another in rank order; a scalar in gives out (size).
  // in may be this rank's rows of out (in place).
  Work all_gather(const at::Tensor& out, const at::Tensor& in, std::string_view label);

  // out (n, …) = rows [rank * n, (rank + 1) * n) of the reduced in (size * n, …); a scalar out takes in (size).
  // out may be this rank's rows of in (in place): only those rows are defined afterwards.
  Work reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, std::string_view label);

  // Rows of dim 0: in_splits[r] rows of in go to rank r, out_splits[r] rows of out come from rank r, both in rank
  // order; zero rows are fine. Both empty: equal parts. out and in do not overlap.
  Work all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                  const std::vector<int64_t>& in_splits, std::string_view label);

  // tensor of rank root (in the group) replaces everyone's.
  Work broadcast(const at::Tensor& tensor, int root, std::string_view label);

  // All parts are under way together, so two neighbours may exchange without deadlock. Only the ranks named as peers
  // take part; this does not count as a collective of the whole group.
  Work send_receive(std::vector<Transfer> transfers, std::string_view label);

  // wait() returns when every rank has issued it.
  Work barrier(std::string_view label);

  // Waiting forms that allocate their result.
  at::Tensor gathered(const at::Tensor& in, std::string_view label);
  at::Tensor reduce_scattered(const at::Tensor& in, ReduceOp op, std::string_view label);
  at::Tensor exchanged(const at::Tensor& in, const std::vector<int64_t>& out_splits,
                       const std::vector<int64_t>& in_splits, std::string_view label);
  // One number, in float64.
  double reduced(double value, ReduceOp op, std::string_view label);

  // Where collectives of this group want their tensors; CPU unless the back end says otherwise.
  virtual at::Device device() const { return at::kCPU; }

  // Returns when all members have called it: from then on collectives only issue. Otherwise the first collective does
  // it, which must then be one that every member issues. Again: nothing.
  virtual void connect() {}
  virtual bool is_connected() const { return true; }

  void set_trace_hook(TraceHook hook) { trace_hook_ = std::move(hook); }
  // The collectives from now on are written there, for the watchdog; see collective_log.h.
  void set_collective_log(std::shared_ptr<CollectiveLog> log);
  const std::shared_ptr<CollectiveLog>& collective_log() const { return log_; }  // null without one
  // Every collective is waited for before it is returned. For measuring what overlap is worth; results stay the same.
  // Not for a group whose ranks issue sends and receives in different order.
  void set_blocking(bool is_blocking) { is_blocking_ = is_blocking; }

 protected:
  friend class GroupView;  // starts collectives of another group under its own records

  // What a back end implements. Arguments were checked: contiguous, shapes that fit, splits filled in, ranks in range.
  // The record lives as long as the Work.
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
  // Runs start(record) -> State; participants are the world ranks that take part, null for all of the group.
  template <typename Start>
  Work issue(CollectiveKind kind, std::string_view label, int64_t bytes, const Start& start,
             const Ranks& participants = nullptr);

  std::vector<int> ranks_;
  int rank_;
  std::string axis_;
  int64_t next_sequence_ = 0;
  TraceHook trace_hook_;
  std::shared_ptr<CollectiveLog> log_;
  Ranks logged_ranks_;  // ranks_, to share with the log
  bool is_blocking_ = false;
};

}  // namespace megalith
