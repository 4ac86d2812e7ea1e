#include "launch/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "core/time.h"
#include "launch/hang_report.h"
#include "launch/patient_board.h"

namespace megalith {
namespace {

// Longer gaps between looks are a suspended process.
constexpr double kLongestTick_s = 2;
// The board answers at once, or its server is stopped.
constexpr double kReasonPatience_s = 0.5;
constexpr auto kReplyPoll = std::chrono::milliseconds(50);
// The serving rank stays this long for readers, who may be a second late.
constexpr double kDeparture_s = 4;

// "first": the collecting rank; "findings": its result.
constexpr const char* kFirst = "hang/first";
constexpr const char* kFindings = "hang/findings";
std::string state_of_rank(int rank) { return fmt::format("hang/state/{}", rank); }
std::string left_by_rank(int rank) { return fmt::format("hang/left/{}", rank); }

std::string indented(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

std::string own_line(const RankStatus& own) { return fmt::format("rank {}: {}", own.rank, state_text(own)); }

}  // namespace

bool HangDetector::observe(double now_s, const std::optional<CollectiveLog::Waiting>& waiting) {
  if (last_s_) awake_s_ += std::min(now_s - *last_s_, kLongestTick_s);
  last_s_ = now_s;
  if (!waiting) {
    serial_.reset();
    return false;
  }
  if (serial_ != waiting->serial) {
    serial_ = waiting->serial;
    since_s_ = awake_s_ - std::min(waiting->age_s, kLongestTick_s);
  }
  return awake_s_ - since_s_ >= timeout_s_;
}

std::string lost_contact_of(int rank) { return fmt::format("lost_contact/{}", rank); }

bool VainWait::observe(double now_s, const std::optional<CollectiveLog::Waiting>& waiting, bool has_reason) {
  if (!waiting || !has_reason) {
    serial_.reset();
    return false;
  }
  if (serial_ != waiting->serial) {
    serial_ = waiting->serial;
    since_s_ = now_s;
  }
  return now_s - since_s_ >= patience_s_;
}

Watchdog::Watchdog(std::shared_ptr<CollectiveLog> log, std::shared_ptr<SharedBoard> board, WatchdogSettings settings)
    : log_(std::move(log)),
      board_(std::make_unique<PatientBoard>(std::move(board))),
      settings_(std::move(settings)),
      detector_(settings_.timeout_s),
      vain_wait_(settings_.break_patience_s),
      timeout_s_(settings_.timeout_s) {
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() { stop(); }

void Watchdog::stop() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  const std::lock_guard lock(joining_);
  if (thread_.joinable()) thread_.join();
}

void Watchdog::raise(const std::string& why) {
  std::lock_guard lock(mutex_);
  raised_ = why;
  changed_.notify_all();
}

bool Watchdog::sleep() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(settings_.look_every_s),
                    [&] { return is_stopping_ || !raised_.empty(); });
  return !is_stopping_;
}

std::string Watchdog::known_reason() const {
  const std::lock_guard lock(mutex_);
  return known_reason_;
}

void Watchdog::look_for_word() {
  board_->post([has_seen_word = has_seen_word_](SharedBoard& board) {
    if (board.find(kFirst)) has_seen_word->store(true);
  });
}

void Watchdog::run() {
  const Stopwatch watch;
  double look_at_s = 0;
  while (sleep()) {
    const double now_s = watch.elapsed_s();
    std::string raised;
    {
      std::lock_guard lock(mutex_);
      raised = raised_;
    }
    if (!raised.empty()) return speak(raised);
    if (has_seen_word_->load()) return speak("the run hangs, as another rank found");
    const std::optional<CollectiveLog::Waiting> waiting = log_->longest_waiting();
    const double timeout_s = timeout_s_.load();
    detector_.set_timeout(timeout_s);
    if (detector_.observe(now_s, waiting)) {
      return speak(fmt::format("the run hangs: a collective took longer than {} ({})", format_duration(timeout_s),
                               timeout_s == settings_.timeout_s ? "distributed_timeout_minutes" : "fault_patience_s"));
    }
    if (now_s >= look_at_s) {
      look_for_word();
      look_at_s = now_s + settings_.board_every_s;
      const bool may_be_vain = waiting && waiting->age_s >= settings_.board_every_s;
      const std::string reason = may_be_vain ? find_reason() : "";
      if (vain_wait_.observe(now_s, waiting, !reason.empty())) return give_up(reason);
    }
  }
}

std::string Watchdog::find_reason() {
  if (!settings_.ended_ranks || stands_back_.load()) return "";
  const std::vector<int> ended = settings_.ended_ranks();
  const auto found = board_->ask<std::string>(
      [ended](SharedBoard& board) -> std::string {
        if (const auto failure = board.find(kFirstFailure)) return *failure;
        std::vector<int> gone = ended;
        // Ranks that ended because they lost another recorded that.
        std::erase_if(gone, [&](int rank) { return board.find(lost_contact_of(rank)).has_value(); });
        // For other machines, which cannot see it.
        return gone.empty() ? "" : board.set_if_absent(kFirstFailure, gone_text(gone));
      },
      kReasonPatience_s);
  if (found) {
    const std::lock_guard lock(mutex_);
    if (!found->empty()) known_reason_ = *found;
    return *found;
  }
  if (!board_->is_gone()) return "";  // it may answer later
  if (const std::string known = known_reason(); !known.empty()) return known;
  if (settings_.server_rank >= 0) return gone_with_store_text(ended);
  return ended.empty() ? "" : gone_text(ended);
}

void Watchdog::give_up(const std::string& reason) {
  if (stands_back_.load()) return;
  is_speaking_.store(true);
  const RankStatus own = log_->status();
  board_->ask<bool>(
      [rank = settings_.rank](SharedBoard& board) {
        board.set(lost_contact_of(rank), "1");
        return true;
      },
      kReasonPatience_s);
  if (settings_.rank == settings_.server_rank && !settings_.stays) {
    std::vector<int> others(static_cast<size_t>(settings_.world_size));
    std::iota(others.begin(), others.end(), 0);
    std::erase(others, settings_.rank);
    wait_for_departures(std::move(others), lost_contact_of);
  }
  const std::string what = own.waiting ? collective_text(*own.waiting) : "a collective";
  settings_.on_hang(fmt::format("{} cannot end: {}{}", what, reason, indented({own_line(own)})));
  if (settings_.stays) is_speaking_.store(false);
}

void Watchdog::speak(const std::string& why) {
  is_speaking_.store(true);
  const RankStatus own = log_->status();
  const auto first = board_->ask<std::string>(
      [rank = settings_.rank, state = to_json(own)](SharedBoard& board) {
        board.set(state_of_rank(rank), state);
        return board.set_if_absent(kFirst, std::to_string(rank));
      },
      settings_.board_patience_s);
  std::string text = why;
  if (!first) {
    text += text_without_board(own, board_->is_gone());
  } else if (*first == std::to_string(settings_.rank)) {
    text += collect(own);
  } else {
    text += listen(own, *first);
  }
  settings_.on_hang(text);
  if (settings_.stays) is_speaking_.store(false);
}

std::string Watchdog::collect(const RankStatus& own) {
  std::vector<RankStatus> answered = {own};
  std::vector<int> silent;
  for (int rank = 0; rank < settings_.world_size; ++rank) {
    if (rank != settings_.rank) silent.push_back(rank);
  }
  const Stopwatch watch;
  while (!silent.empty() && watch.elapsed_s() < settings_.answer_patience_s) {
    using States = std::vector<std::string>;
    const auto states = board_->ask<States>(
        [silent](SharedBoard& board) {
          States found;
          for (const int rank : silent) {
            if (std::optional<std::string> state = board.find(state_of_rank(rank))) found.push_back(*std::move(state));
          }
          return found;
        },
        settings_.board_patience_s);
    if (!states) return text_without_board(own, board_->is_gone());
    for (const std::string& state : *states) {
      answered.push_back(rank_status_from_json(state));
      std::erase(silent, answered.back().rank);
    }
    if (!silent.empty()) std::this_thread::sleep_for(kReplyPoll);
  }
  std::sort(answered.begin(), answered.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  const std::vector<std::string> findings = find_fault(answered, silent);
  std::vector<int> listeners;
  for (const RankStatus& status : answered) {
    if (status.rank != settings_.rank) listeners.push_back(status.rank);
  }
  const std::string published = dump_json(Json{{"findings", findings}, {"listeners", listeners}});
  board_->ask<bool>(
      [published](SharedBoard& board) {
        board.set(kFindings, published);
        return true;
      },
      settings_.board_patience_s);
  if (settings_.rank == settings_.server_rank && !settings_.stays) wait_for_departures(listeners, left_by_rank);
  return indented(findings) + indented(rank_lines(answered, silent));
}

std::string Watchdog::listen(const RankStatus& own, const std::string& first) {
  std::vector<std::string> findings;
  std::vector<int> listeners;
  const Stopwatch watch;
  while (findings.empty() && watch.elapsed_s() < settings_.answer_patience_s + settings_.board_patience_s) {
    using Found = std::optional<std::string>;
    const auto published =
        board_->ask<Found>([](SharedBoard& board) { return board.find(kFindings); }, settings_.board_patience_s);
    if (!published) return text_without_board(own, board_->is_gone());
    if (*published) {
      const Json json = parse_json(**published, "what the ranks found");
      findings = json_get<std::vector<std::string>>(json, "findings", "what the ranks found");
      for (const Json& listener : get_member(json, "listeners", "what the ranks found")) {
        const int rank = json_as<int>(listener, "what the ranks found");
        if (rank != settings_.rank) listeners.push_back(rank);
      }
    } else {
      std::this_thread::sleep_for(kReplyPoll);
    }
  }
  if (settings_.rank == settings_.server_rank) {
    if (!settings_.stays) wait_for_departures(listeners, left_by_rank);
  } else {
    board_->ask<bool>(
        [rank = settings_.rank](SharedBoard& board) {
          board.set(left_by_rank(rank), "1");
          return true;
        },
        settings_.board_patience_s);
  }
  findings.push_back(own_line(own));
  findings.push_back(fmt::format("rank {} shows all ranks", first));
  return indented(findings);
}

void Watchdog::wait_for_departures(std::vector<int> ranks, std::string (*mark_of)(int rank)) {
  const Stopwatch watch;
  while (watch.elapsed_s() < kDeparture_s) {
    if (settings_.ended_ranks) {
      for (const int rank : settings_.ended_ranks()) std::erase(ranks, rank);
    }
    if (ranks.empty()) return;
    const auto left = board_->ask<std::vector<int>>(
        [ranks, mark_of](SharedBoard& board) {
          std::vector<int> found;
          for (const int rank : ranks) {
            if (board.find(mark_of(rank))) found.push_back(rank);
          }
          return found;
        },
        settings_.board_patience_s);
    if (!left) return;
    for (const int rank : *left) std::erase(ranks, rank);
    if (!ranks.empty()) std::this_thread::sleep_for(kReplyPoll);
  }
}

std::string Watchdog::text_without_board(const RankStatus& own, bool is_gone) const {
  const std::string server = settings_.server_rank < 0
                                 ? "the launcher, which serves the ranks' store,"
                                 : fmt::format("rank {}, which serves the ranks' store,", settings_.server_rank);
  const std::string finding = is_gone ? server + " is gone (killed, or out of memory?)"
                                      : server + " does not answer: stopped, swapped out, or its host is gone";
  return indented({finding, own_line(own), "the other ranks cannot be asked; each says what it does itself"});
}

}  // namespace megalith
