#include "comm/thread_hub.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace megalith {
namespace {

ThreadHub::Clock::duration seconds(double s) {
  return std::chrono::duration_cast<ThreadHub::Clock::duration>(std::chrono::duration<double>(s));
}

// Interval of checks for time-out and deadlock.
constexpr double kLookEvery_s = 0.05;

}  // namespace

ThreadHub::ThreadHub(int size, const ThreadWorldSettings& settings)
    : size_(size), settings_(settings), has_finished_(static_cast<size_t>(size), false) {}

void ThreadHub::progress(const Lock&) {
  last_progress_ = Clock::now();
  changed_.notify_all();
}

void ThreadHub::check_alive(const Lock&) const {
  if (!failure_) return;
  throw PeerError(failed_rank_, fmt::format("rank {} failed: {}", failed_rank_, failure_text_));
}

void ThreadHub::wait(Lock& lock, int rank, const std::function<std::optional<Time>()>& ready_at,
                     const std::function<std::string()>& what_for) {
  const Time start = Clock::now();
  const auto waiter = waiters_.insert(waiters_.end(), {rank, &ready_at, &what_for});
  struct Leave {
    std::list<Waiter>& waiters;
    std::list<Waiter>::iterator waiter;
    ~Leave() { waiters.erase(waiter); }
  } leave{waiters_, waiter};

  while (true) {
    const std::optional<Time> ready = ready_at();
    if (ready && *ready <= Clock::now()) return;
    check_alive(lock);
    if (ready) {
      changed_.wait_until(lock, *ready);
      continue;
    }
    const bool is_late = Clock::now() - start > seconds(settings_.timeout_s);
    if (is_late || is_stalled()) {
      throw InternalError(fmt::format("{}; rank {} gives up\n{}",
                                      is_late ? fmt::format("no answer within {} s", settings_.timeout_s)
                                              : std::string("deadlock: every rank waits"),
                                      rank, report()));
    }
    changed_.wait_for(lock, seconds(std::min(kLookEvery_s, settings_.timeout_s / 4)));
  }
}

bool ThreadHub::is_stalled() const {
  if (Clock::now() - last_progress_ < seconds(settings_.stall_s)) return false;
  std::vector<bool> is_stuck = has_finished_;
  for (const Waiter& waiter : waiters_) {
    if ((*waiter.ready_at)()) return false;
    is_stuck[static_cast<size_t>(waiter.rank)] = true;
  }
  return std::find(is_stuck.begin(), is_stuck.end(), false) == is_stuck.end();
}

std::string ThreadHub::report() const {
  std::string text;
  for (int rank = 0; rank < size_; ++rank) {
    bool is_waiting = false;
    for (const Waiter& waiter : waiters_) {
      if (waiter.rank != rank) continue;
      text += fmt::format("  rank {} waits for {}\n", rank, (*waiter.what_for)());
      is_waiting = true;
    }
    if (!is_waiting) {
      text += fmt::format("  rank {} {}\n", rank,
                          has_finished_[static_cast<size_t>(rank)] ? "has finished" : "is outside of any wait()");
    }
  }
  text.pop_back();
  return text;
}

void ThreadHub::fail(int rank, std::exception_ptr error) {
  std::string text;
  try {
    std::rethrow_exception(error);
  } catch (const PeerError&) {
    return;  // a consequence
  } catch (const std::exception& exception) {
    text = exception.what();
  } catch (...) {
    text = "an exception that is no std::exception";
  }
  const Lock held = lock();
  if (failure_) return;
  failure_ = std::move(error);
  failed_rank_ = rank;
  failure_text_ = std::move(text);
  changed_.notify_all();
}

void ThreadHub::finish(int rank) {
  const Lock held = lock();
  has_finished_[static_cast<size_t>(rank)] = true;
  progress(held);
}

std::exception_ptr ThreadHub::failure() {
  const Lock held = lock();
  return failure_;
}

ThreadHub::Time ThreadHub::transfer_end(double bytes, Time& busy_until) const {
  const DelayModel& delay = settings_.delay;
  busy_until = std::max(Clock::now(), busy_until) + seconds(delay.latency_s + bytes / delay.bytes_per_s);
  return busy_until;
}

}  // namespace megalith
