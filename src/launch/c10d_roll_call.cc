// Roll calls in the ranks' store (roll_call.h), and the end of a lost era's collectives.
//
// The first verdict that is written counts, so any member of the last era may write one: once all have answered; or
// once those missing have ended, or did not answer the watchdog (watchdog.h); or after fault_patience_s.
#include <fmt/ranges.h>

#include <algorithm>
#include <future>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#ifdef MEGALITH_GLOO
#include <gloo/context.h>
#include <gloo/transport/pair.h>

#include <typeinfo>
#endif

#include "core/error.h"
#include "launch/c10d_shared.h"
#include "launch/hang_report.h"
#include "launch/patience.h"
#include "launch/rank_process.h"

namespace megalith {
namespace {

using RollClock = std::chrono::steady_clock;

constexpr Milliseconds kRollPause{20}, kBeatPause{250}, kLookPause{500};
// A beat that does not change for this long is a process that ended.
constexpr auto kBeatPatience = std::chrono::milliseconds(1500);
// The watchdog's, after its patience.
constexpr double kReport_s = 5;
constexpr std::string_view kOver = "over: ", kEnded = "over: the run has ended";

std::vector<uint8_t> roll_bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string roll_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// "<iteration> <process>"
struct Answer {
  int64_t iteration = -1;
  std::string process;
};

Answer answer_of(const std::string& text) {
  const size_t blank = std::min(text.find(' '), text.size());
  return {.iteration = std::stoll(text.substr(0, blank)), .process = text.substr(std::min(blank + 1, text.size()))};
}

std::string era_key(int64_t number, std::string_view key) { return fmt::format("era/{}/{}", number, key); }

void throw_if_over(const std::string& verdict) {
  if (verdict.starts_with(kOver)) throw RunIsOver(verdict.substr(kOver.size()), verdict == kEnded);
}

}  // namespace

// Who answered the call for an era: members of the last one, and others whose beat changes.
class SeatsHere {
 public:
  SeatsHere(StorePointer round, int64_t number, int num_seats, std::vector<int> members)
      : round_(std::move(round)), number_(number), num_seats_(num_seats), members_(std::move(members)) {}

  std::vector<int> look() {
    std::vector<int> here;
    num_unsure_ = 0;
    for (int seat = 0; seat < num_seats_; ++seat) {
      if (!round_->check({era_key(number_, fmt::format("here/{}", seat))})) continue;
      if (std::binary_search(members_.begin(), members_.end(), seat) || is_alive(seat)) {
        here.push_back(seat);
      } else {
        ++num_unsure_;
      }
    }
    return here;
  }
  // Seats of the last look() that answered, and whose beat was not seen to change.
  int num_unsure() const { return num_unsure_; }

 private:
  struct Beat {
    int64_t count = -1;
    RollClock::time_point read_at = {};
    bool has_changed = false;
  };

  bool is_alive(int seat) {
    Beat& beat = beats_[seat];
    const int64_t count = round_->add(era_key(number_, fmt::format("beat/{}", seat)), 0);
    if (count != beat.count) beat = {.count = count, .read_at = RollClock::now(), .has_changed = beat.count >= 0};
    return beat.has_changed && RollClock::now() - beat.read_at < kBeatPatience;
  }

  StorePointer round_;
  int64_t number_;
  int num_seats_;
  std::vector<int> members_;
  std::map<int, Beat> beats_;
  int num_unsure_ = 0;
};

struct C10dWorld::Shared::Look {
  std::atomic<bool> has_joiners{false}, is_over{false};
};

struct C10dWorld::Shared::RollProgress {
  std::atomic<int64_t> num_looks{0};
  std::atomic<bool> is_waiting{false};  // belongs to no era
  std::mutex mutex;
  std::vector<Era> left_out;  // eras that began without this process, to be told

  std::vector<Era> take_left_out() {
    const std::lock_guard lock(mutex);
    return std::exchange(left_out, {});
  }
};

void C10dWorld::Shared::end_look() noexcept {
  if (look) look->is_over.store(true);
}

bool C10dWorld::Shared::has_in_era(const std::string& key) {
  return round->check({era.number == 0 ? key : era_key(era.number, "world/" + key)});
}

#ifdef MEGALITH_GLOO
// gloo::transport::tcp::Pair::signalExceptionExternal, which fails a pair's operations; torch has no call for it. The
// installed headers are older than torch's Gloo, so neither data members nor virtual functions of its classes are used
// here. Weak, and null if torch does not export it: this rank leaves its collectives all the same (wait_unless_lost()),
// Gloo's threads end at their time-out, and others whose connections stay open find the loss in the store (watchdog.h)
// or after fault_patience_s.
extern std::exception_ptr fail_tcp_pair(gloo::transport::Pair* self, const std::string& message) __asm__(
    "_ZN4gloo9transport3tcp4Pair23signalExceptionExternalERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE")
    __attribute__((weak));

void EndableGloo::abort() {
  if (&fail_tcp_pair == nullptr) return;
  for (const auto& context : contexts_) {
    for (int rank = 0; rank < getSize(); ++rank) {
      if (rank == getRank()) continue;
      gloo::transport::Pair* pair = context->getPair(rank).get();
      if (pair == nullptr) continue;
      const gloo::transport::Pair& known = *pair;
      if (std::string_view(typeid(known).name()).find("3tcp") == std::string_view::npos) continue;
      fail_tcp_pair(pair, "this era of the run is over");
    }
    context->closeConnections();
  }
}
#endif

std::function<void(const std::string&)> C10dWorld::Shared::loser() {
  return [this](const std::string& message) { lose(message); };
}

void C10dWorld::Shared::lose(const std::string& reason) noexcept {
  std::vector<BackendPointer> ended;
  {
    const std::lock_guard lock(loss_mutex);
    if (is_lost.load()) return;
    loss = reason;
    is_lost.store(true);
    ended = backends;
  }
  // On a thread of its own: Gloo may wait for a rank that does not answer.
  const auto end = [ended = std::move(ended)] {
    for (const BackendPointer& backend : ended) {
      try {
        backend->abort();
      } catch (const std::exception&) {
        // It fails by itself, at the latest after its time-out.
      }
    }
  };
  try {
    std::thread(end).detach();
  } catch (const std::exception&) {
    // No thread started.
  }
}

void C10dWorld::Shared::wait_unless_lost(const C10dWork& work, bool says_done) {
  if (says_done || !device.is_cpu()) {
    for (auto pause = std::chrono::microseconds(10); device.is_cpu() && !work->isCompleted();
         pause = std::min(pause * 2, std::chrono::microseconds(500))) {
      throw_if_lost();
      std::this_thread::sleep_for(pause);
    }
    throw_if_lost();
    work->wait();
    return;
  }
  // Gloo completes sends, receives and reduce-scatters only in wait(), which does not end with the era.
  run_unless_lost([work] { work->wait(); });
  throw_if_lost();
}

void C10dWorld::Shared::run_unless_lost(std::function<void()> part) {
  const auto promise = std::make_shared<std::promise<void>>();
  auto done = promise->get_future();
  std::thread([promise, part = std::move(part)]() mutable {
    try {
      part();
      part = nullptr;  // destroys its objects here, not at process exit
      promise->set_value();
    } catch (...) {
      part = nullptr;
      promise->set_exception(std::current_exception());
    }
  }).detach();
  while (done.wait_for(kRollPause) != std::future_status::ready) throw_if_lost();
  done.get();
}

void C10dWorld::Shared::throw_if_lost() {
  if (!is_lost.load()) return;
  const std::lock_guard lock(loss_mutex);
  throw CommunicationError(loss);
}

BackendPointer C10dWorld::Shared::connect_unless_lost(const std::function<BackendPointer()>& make) {
  const auto made = std::make_shared<BackendPointer>();
  run_unless_lost([made, make] { *made = make(); });
  const BackendPointer backend = *made;
  {
    const std::lock_guard lock(loss_mutex);
    backends.push_back(backend);
  }
  if (is_lost.load()) backend->abort();
  throw_if_lost();
  return backend;
}

void C10dWorld::Shared::release_backends() noexcept {
  std::vector<BackendPointer> released;
  {
    const std::lock_guard lock(loss_mutex);
    released.swap(backends);
  }
  if (released.empty() || !is_lost.load()) return;
  try {
    std::thread([released = std::move(released)]() mutable { released.clear(); }).detach();
  } catch (const std::exception&) {
    // No thread started: they are released here.
  }
}

void C10dWorld::Shared::answer(int64_t number, const RollEntry& entry) {
  if (entry.iteration >= 0 && !entry.numbers.empty()) {
    round->set(era_key(number, fmt::format("step/{}", entry.iteration)), roll_bytes(entry.numbers));
  }
  const std::string key = era_key(number, fmt::format("here/{}", seat));
  const std::string own = fmt::format("{} {}", entry.iteration, own_process());
  const std::string found = roll_text(round->compareSet(key, {}, roll_bytes(own)));
  if (found == own) return;
  // A process that had this seat and ended while it waited.
  const std::string beat = era_key(number, fmt::format("beat/{}", seat));
  const int64_t count = round->add(beat, 0);
  std::this_thread::sleep_for(kBeatPatience);
  const bool is_alive = state_of_process(answer_of(found).process) != ProcessState::kEnded &&
                        round->add(beat, 0) != count;
  if (!is_alive && roll_text(round->compareSet(key, roll_bytes(found), roll_bytes(own))) == own) return;
  throw UserError(fmt::format("another process is rank {} of this run", seat),
                  "start a replacement only for a rank that has ended");
}

std::string C10dWorld::Shared::verdict_on(int64_t number, const RollRules& rules, SeatsHere& seats_here,
                                          RollClock::time_point begin) {
  const std::vector<int> here = seats_here.look();
  std::vector<int> missing;
  for (const int one : era.seats) {
    if (!std::binary_search(here.begin(), here.end(), one)) missing.push_back(one);
  }
  const auto waited = RollClock::now() - begin;
  const std::vector<int> ended = ended_ranks();
  const bool has_report = has_in_era("hang/findings");
  const bool are_lost = std::all_of(missing.begin(), missing.end(), [&](int one) {
    const auto rank = narrow<int>(std::find(era.seats.begin(), era.seats.end(), one) - era.seats.begin());
    const bool has_ended = std::find(ended.begin(), ended.end(), rank) != ended.end();
    return has_ended || (has_report && !has_in_era(fmt::format("hang/state/{}", rank)));
  });
  // A rank that waits for a lost one may notice as late as this.
  const bool is_patient = std::chrono::duration<double>(waited).count() < tolerance.patience_s + kReport_s;
  if (!missing.empty() && !are_lost && is_patient) return "";
  // Replacements that wait are seen after two beats.
  if (missing.empty() && seats_here.num_unsure() > 0 && waited < kBeatPatience) return "";
  const std::vector<int> seats = rules.choose(here);
  if (seats.empty() && std::chrono::duration<double>(waited).count() < rules.wait_s) return "";
  Era chosen{.number = number, .seats = seats, .iterations = {}, .left = {}, .joined = {}, .numbers = {}};
  for (const int one : seats) {
    const std::string text = roll_text(round->get(era_key(number, fmt::format("here/{}", one))));
    chosen.iterations.push_back(answer_of(text).iteration);
  }
  if (seats.empty()) {
    const std::string why = rules.wait_s > 0 ? fmt::format("no replacement came within {:g} minutes", rules.wait_s / 60)
                                             : "no whole replica is left";
    return fmt::format("{}{}: {} answered", kOver, why, ranks_text(here));
  }
  std::set_difference(era.seats.begin(), era.seats.end(), seats.begin(), seats.end(), std::back_inserter(chosen.left));
  std::set_difference(seats.begin(), seats.end(), era.seats.begin(), era.seats.end(),
                      std::back_inserter(chosen.joined));
  return to_json(chosen);
}

Era C10dWorld::Shared::hold_roll_call(const RollEntry& own, const RollRules& rules, RollProgress& progress) {
  RollEntry entry = own;
  bool is_member = !is_late;
  int64_t number = era.number + 1;
  while (true) {
    const std::string key = era_key(number, "verdict");
    if (!is_member && round->check({key})) {  // an era that began without this process
      const std::string text = roll_text(round->get(key));
      throw_if_over(text);
      const Era without = era_from_json(text);
      if (!is_late && std::binary_search(without.seats.begin(), without.seats.end(), seat)) {
        throw RunIsOver(fmt::format("another process is rank {} now", seat), /*has_ended=*/false);
      }
      ++number;
      continue;
    }
    SeatsHere here(round, number, launch_of_seats.world_size, era.seats);
    answer(number, entry);
    const auto begin = RollClock::now();
    auto beat_at = begin;
    while (!round->check({key})) {
      progress.num_looks.fetch_add(1);
      if (RollClock::now() >= beat_at) {
        round->add(era_key(number, fmt::format("beat/{}", seat)), 1);
        beat_at = RollClock::now() + kBeatPause;
      }
      if (is_member) {
        const std::string verdict = verdict_on(number, rules, here, begin);
        if (!verdict.empty()) round->compareSet(key, {}, roll_bytes(verdict));
      }
      std::this_thread::sleep_for(kRollPause);
    }
    const std::string text = roll_text(round->get(key));
    if (is_member && text.starts_with(kOver) && text != kEnded) throw CommunicationError(text.substr(kOver.size()));
    throw_if_over(text);
    Era found = era_from_json(text);
    if (std::binary_search(found.seats.begin(), found.seats.end(), seat)) {
      const std::string numbers = era_key(number, fmt::format("step/{}", found.newest_iteration()));
      if (round->check({numbers})) found.numbers = roll_text(round->get(numbers));
      return found;
    }
    {
      const std::lock_guard lock(progress.mutex);
      progress.left_out.push_back(found);
    }
    progress.is_waiting.store(true);
    entry = {};
    is_member = false;
    ++number;
  }
}

void C10dWorld::Shared::end_eras() noexcept {
  try {
    const int64_t number = era.number + 1;
    for (const int one : era.seats) {
      if (round->check({era_key(number, fmt::format("here/{}", one))})) return;
    }
    round->compareSet(era_key(number, "verdict"), {}, roll_bytes(kEnded));
  } catch (const std::exception&) {
    // The store is gone, which those who wait notice.
  }
}

bool C10dWorld::is_late() const { return shared_->is_late; }

bool C10dWorld::is_lost() const { return shared_->is_lost.load(); }

std::string C10dWorld::loss() const {
  const std::lock_guard lock(shared_->loss_mutex);
  return shared_->loss;
}

void C10dWorld::begin_patience() {
  if (shared_->watchdog) shared_->watchdog->set_timeout(shared_->tolerance.patience_s);
}

std::string C10dWorld::Shared::server_text() const {
  return launch.has_agent_store ? "the launcher's store" : "rank 0, which serves the ranks' store,";
}

// On a thread of its own: a stopped server never replies.
bool C10dWorld::has_joiners(const RollRules& rules) {
  if (!shared_->look) {
    shared_->look = std::make_shared<Shared::Look>();
    std::thread([look = shared_->look, round = shared_->round, number = shared_->era.number + 1,
                 num_seats = shared_->launch_of_seats.world_size, members = shared_->era.seats, rules] {
      try {
        SeatsHere waiting(round->clone(), number, num_seats, {});
        while (!look->is_over.load()) {
          std::vector<int> here = waiting.look();
          here.insert(here.end(), members.begin(), members.end());
          std::sort(here.begin(), here.end());
          here.erase(std::unique(here.begin(), here.end()), here.end());
          look->has_joiners.store(rules.choose(here).size() > members.size());
          std::this_thread::sleep_for(kLookPause);
        }
      } catch (const std::exception&) {
        // The store is gone, as the next collective that breaks will find.
      }
    }).detach();
  }
  return shared_->look->has_joiners.load();
}

Era C10dWorld::call_roll(const RollEntry& entry, const RollRules& rules,
                         const std::function<void(const Era&)>& on_left_out) {
  if (shared_->watchdog) shared_->watchdog->stop();
  shared_->end_look();
  // On a thread of its own: a stopped server never replies.
  const auto progress = std::make_shared<Shared::RollProgress>();
  progress->is_waiting.store(shared_->is_late);
  const auto promise = std::make_shared<std::promise<Era>>();
  auto held = promise->get_future();
  std::thread([promise, progress, shared = shared_, entry, rules] {
    try {
      promise->set_value(shared->hold_roll_call(entry, rules, *progress));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  // Counted in looks, not by the clock: this process may have been stopped.
  const auto most_looks = static_cast<int64_t>(std::max(shared_->tolerance.patience_s, 2.0) * 10);
  int64_t looks = 0, last = -1;
  const auto tell = [&] {
    for (const Era& without : progress->take_left_out()) on_left_out(without);
  };
  while (held.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    const int64_t now = progress->num_looks.load();
    looks = now == last ? looks + 1 : 0;
    last = now;
    tell();
    const bool waits = progress->is_waiting.load() || rules.wait_s > 0;
    if (waits && rules.is_stopped && rules.is_stopped()) {
      throw RunIsOver("stopped by a signal while it waited for other ranks", /*has_ended=*/false);
    }
    if (looks < most_looks) continue;
    throw CommunicationError(fmt::format("{} does not answer, so the ranks that are left cannot agree on who goes on",
                                         shared_->server_text()));
  }
  tell();
  try {
    return held.get();
  } catch (const UserError&) {
    throw;
  } catch (const CommunicationError&) {
    throw;
  } catch (const RunIsOver&) {
    throw;
  } catch (const std::exception& error) {
    throw CommunicationError(fmt::format("{} is gone, so the ranks that are left cannot agree on who goes on{}",
                                         shared_->server_text(), fault_of(error).text()));
  }
}

std::unique_ptr<C10dWorld> C10dWorld::next(const Era& era) {
  const auto shared = std::make_shared<Shared>();
  const Shared& before = *shared_;
  shared->launch = before.launch_of_seats;
  shared->launch_of_seats = before.launch_of_seats;
  shared->launch.rank =
      narrow<int>(std::find(era.seats.begin(), era.seats.end(), before.seat) - era.seats.begin());
  shared->launch.world_size = narrow<int>(std::ssize(era.seats));
  shared->launch.local_world_size = std::min(shared->launch.local_world_size, shared->launch.world_size);
  shared->terms = before.terms;
  shared->device = before.device;
  shared->timeout = before.timeout;
  shared->backend_timeout = before.backend_timeout;
  shared->tolerance = before.tolerance;
  shared->seat = before.seat;
  shared->era = era;
  shared->notes = before.notes;
  shared->interface = before.interface;
#ifdef MEGALITH_GLOO
  shared->gloo_options = before.gloo_options;
#endif
  const auto reach_store = [shared, last = shared_] {
    const Era& era = shared->era;
    // Its own connection: an abandoned thread may use the last era's.
    shared->root = last->root;
    shared->round = last->round->clone();
    shared->store = c10::make_intrusive<c10d::PrefixStore>(era_key(era.number, "world"), shared->round);
    shared->store->setTimeout(shared->timeout);
    for (size_t rank = 0; rank < era.seats.size(); ++rank) {
      const std::string text =
          roll_text(shared->round->get(era_key(era.number, fmt::format("here/{}", era.seats[rank]))));
      const std::string process = answer_of(text).process;
      if (state_of_process(process) != ProcessState::kUnknown) {
        shared->processes_here.emplace_back(static_cast<int>(rank), process);
      }
    }
    shared->board = open_board(*shared->store);
    return true;
  };
  const std::chrono::duration<double> patience(std::max(before.tolerance.patience_s, 2.0));
  std::optional<bool> is_reached;
  try {
    is_reached = within(std::chrono::duration_cast<Milliseconds>(patience), reach_store);
  } catch (const std::exception& error) {
    throw CommunicationError(fmt::format("{} is gone{}", before.server_text(), fault_of(error).text()));
  }
  if (!is_reached) throw CommunicationError(before.server_text() + " does not answer");
  shared->start_watching(shared->loser());
  return std::unique_ptr<C10dWorld>(new C10dWorld(shared));
}

}  // namespace megalith
