// Tells other ranks why one failed, and lets ranks leave. Meeting: c10d_meeting.cc.
#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/communicators.h"
#include "core/error.h"
#include "launch/c10d_backend.h"
#include "launch/c10d_shared.h"
#include "launch/hang_report.h"
#include "launch/patience.h"
#include "launch/rank_process.h"

namespace megalith {
namespace {

Milliseconds milliseconds_of(double seconds) { return Milliseconds(static_cast<int64_t>(seconds * 1e3)); }

// c10d prints a call stack when the server is gone; our messages say why.
void silence_warnings() { FLAGS_caffe2_log_level = c10::GLOG_ERROR; }

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// Leaves room for a stack of causes.
constexpr size_t kLongestReport = 2000;

// For reports, once a collective broke. Closed connections are noticed within milliseconds, except while computing.
constexpr auto kReportPatience = std::chrono::seconds(2);
// For a reply while ending: the server may be stopped.
constexpr auto kStorePatience = std::chrono::seconds(3);
// Back ends give up this much after the watchdog.
constexpr auto kWatchdogFirst = std::chrono::seconds(30);
constexpr auto kWatchdogSpeaks = std::chrono::seconds(15);

}  // namespace

BackEndFault fault_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return translate_back_end_error(c10_error != nullptr ? c10_error->what_without_backtrace() : error.what());
}

BackendPointer C10dWorld::Shared::make_backend(const std::string& key, int rank, int size, bool has_priority) {
  const StorePointer own = c10::make_intrusive<c10d::PrefixStore>(key, store);
  if (!device.is_cpu()) return make_nccl_backend(own, rank, size, backend_timeout, has_priority);
#ifdef MEGALITH_GLOO
  return c10::make_intrusive<EndableGloo>(own, rank, size, gloo_options);
#else
  return nullptr;
#endif
}

std::vector<int> C10dWorld::Shared::ended_ranks() const {
  std::vector<int> ended;
  for (const auto& [rank, process] : processes_here) {
    if (state_of_process(process) == ProcessState::kEnded) ended.push_back(rank);
  }
  return ended;
}

void C10dWorld::Shared::await_while_all_run(const std::string& key) {
  const auto end = std::chrono::steady_clock::now() + backend_timeout;
  for (Milliseconds pause(1); !has(key); pause = std::min(pause * 2, Milliseconds(200))) {
    // It may have set the key before ending.
    if (!ended_ranks().empty() && !has(key)) throw std::runtime_error("a rank has ended before");
    if (std::chrono::steady_clock::now() >= end) throw std::runtime_error("not within " + timeout_text());
    std::this_thread::sleep_for(pause);
  }
}

void C10dWorld::Shared::begin_farewell() {
  const std::lock_guard lock(farewell_mutex);
  if (!farewell_ends) farewell_ends = std::chrono::steady_clock::now() + kReportPatience;
}

// The serving rank leaves once all others are leaving, gone, or late.
void C10dWorld::Shared::end_farewell() noexcept {
  try {
    const std::lock_guard lock(farewell_mutex);
    if (!farewell_ends) return;
    if (launch.rank != 0 || launch.has_agent_store) {
      store->set(fmt::format("farewell/{}", launch.rank), bytes_of("1"));
      return;
    }
    for (int rank = 1; rank < launch.world_size; ++rank) {
      while (!has(fmt::format("farewell/{}", rank)) && std::chrono::steady_clock::now() < *farewell_ends) {
        const std::vector<int> ended = ended_ranks();
        if (std::find(ended.begin(), ended.end(), rank) != ended.end()) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  } catch (const std::exception&) {
    // The server is gone.
  }
}

std::string C10dWorld::Shared::explain(const std::vector<int>& ranks) noexcept {
  if (!tolerance.is_on) return find_reason(ranks);
  if (!is_lost.load()) lose(find_reason(ranks));
  const std::lock_guard lock(loss_mutex);
  return loss;
}

std::string C10dWorld::Shared::find_reason(const std::vector<int>& ranks) noexcept {
  if (watchdog) watchdog->stand_back();
  leave_to_watchdog();
  std::optional<std::string> reason;
  try {
    reason = within(kReportPatience + kStorePatience,
                    [self = shared_from_this(), ranks] { return self->explain_from_store(ranks); });
    leave_to_watchdog();
    if (!reason && watchdog) {
      watchdog->raise("a collective broke, and the ranks' store does not answer");
      std::this_thread::sleep_for(std::chrono::seconds(1));  // unless stopped at the run's end
      leave_to_watchdog();
    }
  } catch (const std::exception&) {
    // No thread started.
  }
  if (reason) return *reason;
  return launch.has_agent_store
             ? "the launcher's store does not answer"
             : "rank 0, which serves the ranks' store, does not answer (stopped, or its host is gone?)";
}

std::string C10dWorld::Shared::explain_from_store(const std::vector<int>& ranks) noexcept {
  std::vector<int> silent, answered;
  silence_warnings();
  try {
    const auto lost_contact = [&](int rank) { return has(lost_contact_of(rank)); };
    // It answers at once or never.
    store->setTimeout(std::chrono::seconds(5));
    if (!tolerance.is_on) begin_farewell();
    store->set(lost_contact_of(launch.rank), bytes_of("1"));
    const auto begin = std::chrono::steady_clock::now();
    silent = ranks;
    while (true) {
      if (has(kFirstFailure)) return text_of(store->get(kFirstFailure));
      // Ranks that ended because they lost another recorded that.
      std::vector<int> ended = ended_ranks();
      std::erase_if(ended, lost_contact);
      // For other machines, which cannot see the end; the rank may have left its own reason.
      if (!ended.empty()) return text_of(store->compareSet(kFirstFailure, {}, bytes_of(gone_text(ended))));
      std::erase_if(silent, lost_contact);
      // If all lost contact, another rank is at fault, or just ending.
      const auto patience = silent.empty() ? kReportPatience / 2 : kReportPatience;
      if (std::chrono::steady_clock::now() - begin >= patience) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  } catch (const std::exception&) {
    // The serving rank may have ended only because another did.
    if (std::string known = watchdog ? watchdog->known_reason() : ""; !known.empty()) return known;
    const std::vector<int> ended = ended_ranks();
    if (!launch.has_agent_store) return gone_with_store_text(ended);
    return ended.empty() ? "a rank is gone, and so is the launcher's store" : gone_text(ended);
  }
  if (silent.empty()) {
    return "these ranks lost contact with one another, no rank has left a reason, and none that can be seen from here "
           "has ended: the network between them, or a rank on another machine";
  }
  for (const int rank : ranks) {
    if (rank != launch.rank && std::find(silent.begin(), silent.end(), rank) == silent.end()) answered.push_back(rank);
  }
  // A rank waiting for a third notices later: several may be silent because of one.
  return fmt::format("{} {} is gone or stuck: no word from {} within {} s (killed, or out of memory?){}",
                     silent.size() == 1 ? "rank" : "one of the ranks", fmt::join(silent, ", "),
                     silent.size() == 1 ? "it" : "them", kReportPatience.count(),
                     answered.empty() ? "" : fmt::format("; {} lost contact as well", ranks_text(answered)));
}

void C10dWorld::Shared::start_watching(std::function<void(const std::string&)> on_hang) {
  // No call stacks over our messages.
  silence_warnings();
  log = std::make_shared<CollectiveLog>(launch.rank, !device.is_cpu());
  watchdog = std::make_unique<Watchdog>(log, board, watchdog_settings(std::move(on_hang)));
}

WatchdogSettings C10dWorld::Shared::watchdog_settings(std::function<void(const std::string&)> on_hang) {
  const auto server = std::find(era.seats.begin(), era.seats.end(), 0);
  const bool is_server_in = !launch.has_agent_store && server != era.seats.end();
  WatchdogSettings settings{.rank = launch.rank,
                            .world_size = launch.world_size,
                            .timeout_s = std::chrono::duration<double>(timeout).count(),
                            .server_rank = is_server_in ? narrow<int>(server - era.seats.begin()) : -1,
                            .on_hang = std::move(on_hang),
                            .ended_ranks = [this] { return ended_ranks(); }};
  if (!tolerance.is_on) return settings;
  settings.stays = true;
  settings.break_patience_s = 0.25;
  settings.answer_patience_s = 1.5;
  settings.board_every_s = 0.5;
  return settings;
}

void C10dWorld::Shared::leave_to_watchdog() const noexcept {
  const auto end = std::chrono::steady_clock::now() + kWatchdogSpeaks;
  while (watchdog && watchdog->is_speaking() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

C10dWorld::C10dWorld(const Launch& launch, c10::Device device, double timeout_s, const MeetingTerms& terms,
                     std::function<void(const std::string&)> on_hang, const LossTolerance& tolerance)
    : shared_(std::make_shared<Shared>()) {
  shared_->launch = shared_->launch_of_seats = launch;
  shared_->tolerance = tolerance;
  shared_->seat = launch.rank;
  shared_->era.seats.resize(static_cast<size_t>(launch.world_size));
  std::iota(shared_->era.seats.begin(), shared_->era.seats.end(), 0);
  shared_->terms = terms;
  if (launch.world_size == 1 && launch.master_address.empty()) {
    shared_->launch.master_address = "127.0.0.1";  // port 0: any free one
    shared_->launch.has_agent_store = false;
  }
  shared_->device = device;
  shared_->timeout = milliseconds_of(timeout_s);
  shared_->backend_timeout = on_hang ? shared_->timeout + kWatchdogFirst : shared_->timeout;
#ifndef MEGALITH_GLOO
  if (device.is_cpu()) {
    throw UserError("this program was built without Gloo, so several ranks cannot work together on CPUs",
                    "install libgloo-dev and build again, or start one rank");
  }
#endif
#ifndef MEGALITH_NCCL
  if (!device.is_cpu()) {
    throw UserError("this program was built without NCCL or RCCL, so several ranks cannot work together on GPUs",
                    "build against a CUDA or ROCm torch with nccl.h (pip install nvidia-nccl-cu13), start one rank, or "
                    "use --device cpu");
  }
#endif
  if (tolerance.is_on && !device.is_cpu()) {
    // c10d's own watchdog would end the process.
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);  // clean up only
    ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);
  }
  shared_->meet();
  if (shared_->is_late) return;
  if (tolerance.is_on) on_hang = shared_->loser();
  if (on_hang) shared_->start_watching(std::move(on_hang));
}

C10dWorld::~C10dWorld() {
  if (shared_->watchdog) shared_->watchdog->stop();
  shared_->end_look();
  shared_->release_backends();
  try {
    within(kReportPatience + kStorePatience, [shared = shared_] {
      shared->end_farewell();
      return true;
    });
  } catch (const std::exception&) {
    // No thread started.
  }
}

int C10dWorld::rank() const { return shared_->launch.rank; }

int C10dWorld::size() const { return shared_->launch.world_size; }

const std::vector<std::string>& C10dWorld::notes() const { return shared_->notes; }

const std::string& C10dWorld::interface() const { return shared_->interface; }

namespace {

// A collective without a Group, logged as a barrier.
class SharedPart {
 public:
  SharedPart(CollectiveLog* log, const std::string& axis, const std::vector<int>& ranks, const std::string& label)
      : log_(log) {
    if (log_ == nullptr) return;
    auto record = std::make_shared<CollectiveRecord>();
    record->kind = CollectiveKind::kBarrier;
    record->axis = axis;
    record->label = label;
    record->group_size = static_cast<int>(ranks.size());
    ticket_ = log_->begin(std::move(record), std::make_shared<const std::vector<int>>(ranks));
  }
  ~SharedPart() {
    if (log_ != nullptr) log_->issued(ticket_, nullptr);
  }
  SharedPart(const SharedPart&) = delete;
  SharedPart& operator=(const SharedPart&) = delete;

 private:
  CollectiveLog* log_;
  CollectiveLog::Ticket ticket_;
};

}  // namespace

BackendPointer C10dWorld::Shared::connect(const std::vector<int>& ranks, int position, const std::string& axis) {
  throw_if_lost();
  const SharedPart meeting(log.get(), axis, ranks, "connecting the ranks");
  try {
    // An axis's groups are disjoint.
    const auto make = [self = shared_from_this(), key = fmt::format("group/{}/{}", axis, ranks.front()), position,
                       size = static_cast<int>(ranks.size()), is_first = has_priority(axis)] {
      BackendPointer backend = self->make_backend(key, position, size, is_first);
      if (!self->device.is_cpu()) {
        // NCCL connects in its first operation, which needs all ranks.
        c10d::BarrierOptions options;
        options.device_ids = {self->device.index()};
        backend->barrier(options)->wait();
      }
      return backend;
    };
    return tolerance.is_on ? connect_unless_lost(make) : make();
  } catch (const std::exception& error) {
    throw CommunicationError(fmt::format("group {} (ranks {}) could not be made: {}{}", axis, fmt::join(ranks, ", "),
                                         explain(ranks), fault_of(error).text()));
  }
}

GroupFactory C10dWorld::factory() {
  return [shared = shared_](std::vector<int> ranks, const std::string& axis) -> std::shared_ptr<Group> {
    const auto own = std::find(ranks.begin(), ranks.end(), shared->launch.rank);
    MEGALITH_CHECK(own != ranks.end(), "rank {} is not in its group {}", shared->launch.rank, axis);
    const int position = static_cast<int>(own - ranks.begin());
    auto group = std::make_shared<C10dGroup>(std::move(ranks), position, axis, shared);
    if (shared->log) group->set_collective_log(shared->log);
    return group;
  };
}

void C10dWorld::report_failure(std::string_view message) noexcept {
  silence_warnings();
  try {
    within(kStorePatience, [shared = shared_, text = fmt::format("rank {} failed: {}", shared_->launch.rank,
                                                                 message.substr(0, kLongestReport))] {
      try {
        shared->store->setTimeout(std::chrono::seconds(5));
        shared->begin_farewell();
        shared->store->compareSet(kFirstFailure, {}, bytes_of(text));
      } catch (const std::exception&) {
        // Others failed before.
      }
      return true;
    });
  } catch (const std::exception&) {
    // No thread started.
  }
}

std::vector<int> C10dWorld::ranks_that_end_with(std::string_view message) noexcept {
  const int rank = shared_->launch.rank, world_size = shared_->launch.world_size;
  const auto key_of = [](int of) { return fmt::format("ends_with/{}", of); };
  const auto look = [shared = shared_, text = std::string(message.substr(0, kLongestReport)), rank, world_size,
                     key_of] {
    std::vector<int> same = {rank};
    try {
      shared->store->setTimeout(std::chrono::seconds(5));
      shared->store->set(key_of(rank), bytes_of(text));
      const auto end = std::chrono::steady_clock::now() + kReportPatience;
      while (true) {
        same.clear();
        bool are_all_known = true;
        for (int other = 0; other < world_size; ++other) {
          const std::string key = key_of(other);
          if (other != rank && !shared->has(key)) {
            are_all_known = false;
          } else if (other == rank || text_of(shared->store->get(key)) == text) {
            same.push_back(other);
            if (other < rank) return same;
          }
        }
        if (are_all_known || std::chrono::steady_clock::now() >= end) return same;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    } catch (const std::exception&) {
      same = {rank};  // no store: each rank reports for itself
    }
    return same;
  };
  try {
    if (const auto same = within(kReportPatience + kStorePatience, look)) return *same;
  } catch (const std::exception&) {
    // No thread started.
  }
  return {rank};
}

void C10dWorld::Shared::leave_together() {
  const std::string key = "finished";
  const int64_t arrived = store->add(key, 1);
  if (arrived == launch.world_size) store->set("all_" + key, bytes_of("1"));
  await_while_all_run("all_" + key);
  if (watchdog) watchdog->stop();
  if (tolerance.is_on && launch.rank == 0) end_eras();
  // The serving rank leaves last.
  if (!serves_store()) {
    store->add("left", 1);
    return;
  }
  const auto end = std::chrono::steady_clock::now() + kReportPatience;
  while (store->add("left", 0) + 1 < launch.world_size && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void C10dWorld::finish() {
  silence_warnings();
  std::vector<int> ranks(static_cast<size_t>(shared_->launch.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const SharedPart end_of_run(shared_->log.get(), "world", ranks, "end of the run");
  try {
    if (shared_->tolerance.is_on) {
      shared_->run_unless_lost([shared = shared_] { shared->leave_together(); });
    } else {
      shared_->leave_together();
    }
  } catch (const std::exception& error) {
    if (shared_->tolerance.is_on) {
      within(kStorePatience, [shared = shared_] {
        shared->end_eras();
        return true;
      });
    }
    throw CommunicationError(fmt::format("the ranks did not all come to the end of the run: {}{}", shared_->explain({}),
                                         fault_of(error).text()));
  }
}

}  // namespace megalith
