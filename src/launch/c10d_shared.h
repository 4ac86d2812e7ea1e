// What the groups of a C10dWorld and the world itself share. Includes most of c10d, which costs ten seconds: for
// c10d_group.cc, c10d_world.cc, c10d_meeting.cc, c10d_board.cc and c10d_sealed_store.cc only.
#pragma once

#ifdef MEGALITH_GLOO
#define USE_C10D_GLOO 1
#endif

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>
#ifdef MEGALITH_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include "comm/collective_log.h"
#include "comm/single_group.h"
#include "launch/back_end_fault.h"
#include "launch/c10d_group.h"
#include "launch/network.h"
#include "launch/watchdog.h"

namespace megalith {

using Milliseconds = std::chrono::milliseconds;
using StorePointer = c10::intrusive_ptr<c10d::Store>;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

// What c10d and the libraries below it say, in our words.
BackEndFault fault_of(const std::exception& error);

// The words of all ranks, over a connection to the store of its own: one store lets one thread ask at a time.
std::shared_ptr<SharedBoard> open_board(c10d::Store& store);

// The store as it is for those who know the secret, see store_secret.h; itself without one. Counters are not sealed.
StorePointer seal_store(StorePointer store, const std::string& secret);

// What the groups of one world share; they may outlive it.
struct C10dWorld::Shared : std::enable_shared_from_this<C10dWorld::Shared> {
  Launch launch;
  MeetingTerms terms;
  c10::Device device = c10::kCPU;
  Milliseconds timeout{0};
  Milliseconds backend_timeout{0};  // later than the watchdog's, where there is one: it knows more
  StorePointer store;
#ifdef MEGALITH_GLOO
  c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_options;
#endif

  std::vector<std::string> notes;
  std::string interface;
  // The processes of this machine's ranks, named as in rank_process.h. Whether ranks elsewhere still run is not known.
  std::vector<std::pair<int, std::string>> processes_here;
  std::shared_ptr<SharedBoard> board;  // of the watchdog
  // Set when the run fails: until then whoever serves the store keeps it, so that all learn why.
  std::optional<std::chrono::steady_clock::time_point> farewell_ends;
  std::mutex farewell_mutex;
  // Null when nobody watches.
  std::shared_ptr<CollectiveLog> log;
  std::unique_ptr<Watchdog> watchdog;

  // Until all ranks have come; sets what stands above. c10d_meeting.cc.
  void meet();
  StorePointer open_store(const NetworkChoice& network);
  StorePointer reach_store(const NetworkChoice& network);  // with patience: somebody else may listen there
  std::string place() const;                               // where the ranks meet
  CommunicationError not_met(const std::string& reason,
                             const std::string& remedy =
                                 "see that all ranks were started and that the machines reach "
                                 "that address") const;
  BackendPointer make_backend(const std::string& key, int rank, int size, bool has_priority);
  // The connections of these ranks, of which this one is at `position`. Returns when all have come. CommunicationError.
  BackendPointer connect(const std::vector<int>& ranks, int position, const std::string& axis);
  // Who is at fault when a collective over these ranks broke. Never throws: it is asked in the middle of a failure.
  std::string explain(const std::vector<int>& ranks) noexcept;
  std::string explain_from_store(const std::vector<int>& ranks) noexcept;
  void start_watching(std::function<void(const std::string&)> on_hang);
  // While the watchdog speaks, connections to ranks that have spoken break: that is no news. It ends the process.
  void leave_to_watchdog() const noexcept;
  // Those whose processes have ended, as far as can be told from this machine.
  std::vector<int> ended_ranks() const;
  // Until the key is there; std::exception when a rank ends before, or at the time-out.
  void await_while_all_run(const std::string& key);
  void begin_farewell();  // as often as it is wanted
  void end_farewell() noexcept;
  bool has(const std::string& key) { return store->check({key}); }
  std::string timeout_text() const {
    return fmt::format("{:g} minutes (distributed_timeout_minutes)", static_cast<double>(timeout.count()) / 6e4);
  }
};

class C10dGroup : public Group {
 public:
  using World = std::shared_ptr<C10dWorld::Shared>;
  C10dGroup(std::vector<int> ranks, int position, std::string axis, World world);

  at::Device device() const override { return world_->device; }
  void connect() override;
  bool is_connected() const override { return backend_.defined(); }

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override;
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override;
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override;
  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override;
  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override;
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override;
  State start_barrier(const Record& record) override;

 private:
  State start(const Record& record, const std::function<std::vector<C10dWork>()>& issue,
              std::function<void()> after = {});

  World world_;
  BackendPointer backend_;  // null before connect()
  SingleGroup self_;        // what a rank sends to itself: Gloo has no connection for it
};

}  // namespace megalith
