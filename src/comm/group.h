// A group of ranks and its collectives; back ends: SingleGroup, ThreadGroup (tests), c10d, FakeGroup.
//
// Collectives are asynchronous: until wait(), inputs must stay untouched and outputs unread. (An unconnected group's
// first waits for all its ranks.) Ranks issue the same collectives in the same order, also across groups that share a
// communicator. Labels name the tensor for traces, watchdog and errors.
//
// Tensors are contiguous; ranks agree on dtype and shape. Autograd records nothing: nn/'s Functions declare gradients.
// Groups of one only copy distinct buffers.
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
  int64_t sequence = 0;  // of this group on this rank, from 0
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string axis;  // "tp", "dp_cp", …
  std::string label;
  int group_rank = 0;
  int group_size = 1;
  int64_t bytes = 0;  // the larger of input and output

  std::string text() const;  // "all_gather tp mlp.fc1.weight 32.0 MiB"
};

enum class TracePhase { kStart, kEnd };  // issued; first wait() returned

// Called on the issuing or waiting thread.
using TraceHook = std::function<void(TracePhase, const CollectiveRecord&)>;

class WorkState {
 public:
  virtual ~WorkState() = default;
  // Returns when results are there; on an accelerator, once the current stream is ordered after them. Throws the
  // collective's failure. Idempotent.
  virtual void wait() = 0;
  virtual bool is_done() = 0;
  // Called after wait() on the same thread. The result, which holds no tensor, tells any thread if the accelerator has
  // passed the collective. Empty: wait() itself waited.
  virtual std::function<bool()> completion() { return {}; }
};

class CollectiveLog;
struct LoggedCollective;

// Copies share the collective; a default one is done.
class [[nodiscard]] Work {
 public:
  Work() = default;
  // log, logged: may be null
  Work(std::shared_ptr<WorkState> state, std::shared_ptr<const CollectiveRecord> record, TraceHook hook,
       std::shared_ptr<CollectiveLog> log = nullptr, std::shared_ptr<LoggedCollective> logged = nullptr);

  void wait();
  bool is_done() const;  // never blocks

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// The n-th send between two ranks matches the n-th receive, with an equal tag: NCCL matches by order, Gloo by tag.
struct Transfer {
  at::Tensor tensor;  // contiguous; both sides agree on shape and dtype
  int peer = 0;       // group rank; may be this one
  bool is_send = false;
  int tag = 0;

  static Transfer send(at::Tensor tensor, int peer, int tag = 0) { return {std::move(tensor), peer, true, tag}; }
  static Transfer receive(at::Tensor tensor, int peer, int tag = 0) { return {std::move(tensor), peer, false, tag}; }
};

class Group {
 public:
  //   ranks  world ranks, in group order
  //   rank   this rank's position
  //   axis   "tp", "dp_cp"
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

  // In place. kAvg needs a floating dtype. Single and thread back ends round bf16 and fp16 sums once, NCCL and Gloo at
  // every hop.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view label);

  // out (size * n, …) = the ranks' in (n, …) in rank order; a scalar in gives out (size). in may be this rank's rows of
  // out.
  Work all_gather(const at::Tensor& out, const at::Tensor& in, std::string_view label);

  // out (n, …) = rows [rank * n, (rank + 1) * n) of the reduced in (size * n, …); a scalar out takes in (size). out may
  // be this rank's rows of in, whose others are then undefined.
  Work reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, std::string_view label);

  // Rows of dim 0, in rank order: in_splits[r] of in go to rank r, out_splits[r] of out come from it. Empty splits:
  // equal parts. out and in must not overlap.
  Work all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                  const std::vector<int64_t>& in_splits, std::string_view label);

  // root: group rank.
  Work broadcast(const at::Tensor& tensor, int root, std::string_view label);

  // All parts are in flight together, so exchanges cannot deadlock. Not a collective of the whole group: only the peers
  // take part.
  Work send_receive(std::vector<Transfer> transfers, std::string_view label);

  // wait() returns once every rank has issued it.
  Work barrier(std::string_view label);

  // Blocking; allocate their result.
  at::Tensor gathered(const at::Tensor& in, std::string_view label);
  at::Tensor reduce_scattered(const at::Tensor& in, ReduceOp op, std::string_view label);
  at::Tensor exchanged(const at::Tensor& in, const std::vector<int64_t>& out_splits,
                       const std::vector<int64_t>& in_splits, std::string_view label);
  double reduced(double value, ReduceOp op, std::string_view label);

  virtual at::Device device() const { return at::kCPU; }

  // Blocks until all members call it. Otherwise the first collective connects, and every member must issue it.
  // Idempotent.
  virtual void connect() {}
  virtual bool is_connected() const { return true; }

  void set_trace_hook(TraceHook hook) { trace_hook_ = std::move(hook); }
  void set_collective_log(std::shared_ptr<CollectiveLog> log);
  const std::shared_ptr<CollectiveLog>& collective_log() const { return log_; }  // may be null
  // Waits for each collective, to measure overlap. Not if ranks order sends and receives differently.
  void set_blocking(bool is_blocking) { is_blocking_ = is_blocking; }

 protected:
  friend class GroupView;

  // For back ends: arguments are checked, splits filled in. The record lives as long as the Work.
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
  // start(record) -> State. participants: world ranks; null for the whole group.
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
