// State shared by a C10dWorld and its groups. Only for src/launch/c10d_*.cc: c10d's headers take ten seconds to
// compile.
#pragma once

#ifdef MEGALITH_GLOO
#define USE_C10D_GLOO 1
#endif

#include <fmt/format.h>

#include <atomic>
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
#include "launch/roll_call.h"
#include "launch/watchdog.h"

namespace megalith {

using Milliseconds = std::chrono::milliseconds;
using StorePointer = c10::intrusive_ptr<c10d::Store>;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

BackEndFault fault_of(const std::exception& error);

// On its own connection: a store serves one thread at a time.
std::shared_ptr<SharedBoard> open_board(c10d::Store& store);

// Without a secret, the store itself. Counters are not sealed.
StorePointer seal_store(StorePointer store, const std::string& secret);

// Groups may outlive their world.
struct C10dWorld::Shared : std::enable_shared_from_this<C10dWorld::Shared> {
  Launch launch;
  MeetingTerms terms;
  c10::Device device = c10::kCPU;
  Milliseconds timeout{0};
  Milliseconds backend_timeout{0};  // later than the watchdog's, which knows more
  StorePointer store;  // the era's
#ifdef MEGALITH_GLOO
  c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_options;
#endif

  std::vector<std::string> notes;
  std::string interface;
  // This machine's ranks and processes (rank_process.h).
  std::vector<std::pair<int, std::string>> processes_here;
  std::shared_ptr<SharedBoard> board;
  // Set on failure: until then the serving rank keeps the store, so all learn why.
  std::optional<std::chrono::steady_clock::time_point> farewell_ends;
  std::mutex farewell_mutex;
  // Null without a watchdog.
  std::shared_ptr<CollectiveLog> log;
  std::unique_ptr<Watchdog> watchdog;

  // ---- With LossTolerance (c10d_roll_call.cc)
  LossTolerance tolerance;
  StorePointer root;       // keeps a serving rank's server
  StorePointer round;      // of the first meeting, for roll calls
  int seat = 0;            // launch.rank is the era's
  Launch launch_of_seats;  // as the process was started
  Era era;
  bool is_late = false;
  std::atomic<bool> is_lost{false};
  std::mutex loss_mutex;  // of the two below
  std::string loss;
  std::vector<BackendPointer> backends;  // to end when the era is lost
  struct Look;  // for replacements that wait
  std::shared_ptr<Look> look;
  void end_look() noexcept;

  std::function<void(const std::string&)> loser();  // for start_watching()
  // Abandons a connection that does not come about; `make` owns what it uses.
  BackendPointer connect_unless_lost(const std::function<BackendPointer()>& make);
  // Their threads may wait for ranks that do not answer.
  void release_backends() noexcept;
  // Ends all collectives of this process. The first reason stays.
  void lose(const std::string& reason) noexcept;
  void throw_if_lost();
  // Waits for the work, or throws once the era is lost.
  //   says_done  Gloo's isCompleted() is true before wait()
  void wait_unless_lost(const C10dWork& work, bool says_done);
  // Runs `part` on a thread of its own, which is abandoned once the era is lost: a stopped server never replies. `part`
  // owns what it uses.
  void run_unless_lost(std::function<void()> part);
  bool serves_store() const { return seat == 0 && !launch.has_agent_store; }
  // A key of this era, over the connection of roll calls.
  bool has_in_era(const std::string& key);
  struct RollProgress;  // of the thread that holds a roll call
  Era hold_roll_call(const RollEntry& entry, const RollRules& rules, RollProgress& progress);
  void answer(int64_t number, const RollEntry& entry);
  // Empty: not yet.
  std::string verdict_on(int64_t number, const RollRules& rules, class SeatsHere& seats,
                         std::chrono::steady_clock::time_point begin);
  // Ends the run for those who wait to join it, unless ranks of this era lost others and go on.
  void end_eras() noexcept;
  // The run's end: no rank leaves while another needs it.
  void leave_together();
  std::string server_text() const;  // "rank 0, which serves the ranks' store,"

  // Blocks until all ranks have come; sets the members above.
  void meet();
  StorePointer open_store(const NetworkChoice& network);
  StorePointer reach_store(const NetworkChoice& network);  // the listener may be another program
  std::string place() const;                               // of the meeting
  CommunicationError not_met(const std::string& reason,
                             const std::string& remedy =
                                 "see that all ranks were started and that the machines reach "
                                 "that address") const;
  BackendPointer make_backend(const std::string& key, int rank, int size, bool has_priority);
  // Connects ranks, this being `position`; blocks until all have come. CommunicationError.
  BackendPointer connect(const std::vector<int>& ranks, int position, const std::string& axis);
  // The rank at fault when a collective broke.
  std::string explain(const std::vector<int>& ranks) noexcept;
  std::string find_reason(const std::vector<int>& ranks) noexcept;
  std::string explain_from_store(const std::vector<int>& ranks) noexcept;
  void start_watching(std::function<void(const std::string&)> on_hang);
  WatchdogSettings watchdog_settings(std::function<void(const std::string&)> on_hang);
  // During the watchdog's report ended ranks break connections: no news, and the watchdog ends the process.
  void leave_to_watchdog() const noexcept;
  // On this machine.
  std::vector<int> ended_ranks() const;
  // Blocks until the key exists; std::exception if a rank ends first, or at the time-out.
  void await_while_all_run(const std::string& key);
  void begin_farewell();  // idempotent
  void end_farewell() noexcept;
  bool has(const std::string& key) { return store->check({key}); }
  std::string timeout_text() const {
    return fmt::format("{:g} minutes (distributed_timeout_minutes)", static_cast<double>(timeout.count()) / 6e4);
  }
};

#ifdef MEGALITH_GLOO
// Gloo whose operations any thread can end.
class EndableGloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  // Operations under way and later ones fail, here and, as connections close, at the other ranks.
  void abort() override;
};
#endif

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
  SingleGroup self_;        // for transfers to itself: Gloo has no such connection
};

}  // namespace megalith
