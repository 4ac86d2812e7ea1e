#include "comm/collective_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace megalith {
namespace {

constexpr size_t kPollAt = 64;

double steady_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A failing device counts as not done.
bool is_done_without_throwing(const std::function<bool()>& is_done) noexcept {
  try {
    return is_done();
  } catch (...) {
    return false;
  }
}

std::string group_key(const LoggedCollective& collective) {
  return fmt::format("{}/{}", collective.record->axis, collective.ranks->front());
}

CollectiveStatus status_of(const LoggedCollective& collective, double age_s) {
  const CollectiveRecord& record = *collective.record;
  return {.text = record.text(),
          .content = fmt::format("{} {}", name_of(record.kind), record.label),
          .group = group_key(collective),
          .sequence = record.sequence,
          .ordinal = collective.ordinal,
          .ranks = *collective.ranks,
          .age_s = age_s};
}

}  // namespace

CollectiveLog::CollectiveLog(int rank, bool is_accelerator, Clock clock)
    : rank_(rank),
      is_accelerator_(is_accelerator),
      clock_(clock ? std::move(clock) : Clock(steady_s)),
      last_event_s_(now()),
      poll_at_(kPollAt) {}

CollectiveLog::Ticket CollectiveLog::begin(std::shared_ptr<const CollectiveRecord> record,
                                           std::shared_ptr<const std::vector<int>> ranks) {
  auto ticket = std::make_shared<LoggedCollective>();
  ticket->record = std::move(record);
  ticket->ranks = std::move(ranks);
  std::vector<std::shared_ptr<WorkState>> released;
  std::lock_guard lock(mutex_);
  if (ticket->record->kind != CollectiveKind::kSendReceive) ticket->ordinal = issued_[group_key(*ticket)]++;
  ticket->serial = next_serial_++;
  ticket->issued_s = ticket->waiting_since_s = last_event_s_ = now();
  if (unfinished_.size() >= poll_at_) {
    poll_locked(released);
    poll_at_ = std::max(kPollAt, 2 * unfinished_.size());
  }
  unfinished_.push_back(ticket);
  return ticket;
}

void CollectiveLog::issued(const Ticket& ticket, const std::shared_ptr<WorkState>& state) {
  std::lock_guard lock(mutex_);
  last_event_s_ = now();
  ticket->is_issuing = false;
  ticket->state = state;
  if (!state) finish_locked(ticket);
}

void CollectiveLog::begin_wait(const Ticket& ticket) {
  std::lock_guard lock(mutex_);
  last_event_s_ = now();
  if (ticket->num_waiting++ == 0) ticket->waiting_since_s = last_event_s_;
}

void CollectiveLog::end_wait(const Ticket& ticket, std::function<bool()> completion) {
  std::lock_guard lock(mutex_);
  last_event_s_ = now();
  --ticket->num_waiting;
  if (completion) {
    ticket->completion = std::move(completion);
  } else {
    finish_locked(ticket);
  }
}

void CollectiveLog::failed(const Ticket& ticket) {
  std::lock_guard lock(mutex_);
  last_event_s_ = now();
  std::erase(unfinished_, ticket);
}

void CollectiveLog::finish_locked(const Ticket& ticket) {
  if (std::erase(unfinished_, ticket) == 0) return;
  ticket->finished_s = now();
  ticket->state.reset();
  ticket->completion = nullptr;
  last_finished_ = ticket;
}

void CollectiveLog::poll_locked(std::vector<std::shared_ptr<WorkState>>& released) {
  std::vector<Ticket> finished, dropped;
  for (const Ticket& ticket : unfinished_) {
    // The state is that thread's.
    if (ticket->is_issuing || ticket->num_waiting > 0) continue;
    if (ticket->completion) {
      if (is_done_without_throwing(ticket->completion)) finished.push_back(ticket);
      continue;
    }
    std::shared_ptr<WorkState> state = ticket->state.lock();
    if (!state) {
      dropped.push_back(ticket);  // never awaited
    } else if (is_done_without_throwing([&] { return state->is_done(); })) {
      finished.push_back(ticket);
    }
    released.push_back(std::move(state));
  }
  for (const Ticket& ticket : finished) finish_locked(ticket);
  for (const Ticket& ticket : dropped) std::erase(unfinished_, ticket);
}

bool CollectiveLog::is_waiting(const LoggedCollective& collective) const {
  return is_accelerator_ || collective.is_issuing || collective.num_waiting > 0;
}

double CollectiveLog::since_s(const LoggedCollective& collective) const {
  return is_accelerator_ ? collective.issued_s : collective.waiting_since_s;
}

CollectiveLog::Ticket CollectiveLog::longest_waiting_locked() const {
  Ticket longest;
  for (const Ticket& ticket : unfinished_) {
    if (is_waiting(*ticket) && (!longest || since_s(*ticket) < since_s(*longest))) longest = ticket;
  }
  return longest;
}

std::optional<CollectiveLog::Waiting> CollectiveLog::longest_waiting() {
  std::vector<std::shared_ptr<WorkState>> released;
  std::lock_guard lock(mutex_);
  poll_locked(released);
  const Ticket longest = longest_waiting_locked();
  if (!longest) return std::nullopt;
  return Waiting{longest->serial, now() - since_s(*longest)};
}

RankStatus CollectiveLog::status() {
  std::vector<std::shared_ptr<WorkState>> released;
  std::lock_guard lock(mutex_);
  poll_locked(released);
  RankStatus status;
  status.rank = rank_;
  if (const Ticket longest = longest_waiting_locked()) status.waiting = status_of(*longest, now() - since_s(*longest));
  if (last_finished_) status.last_finished = status_of(*last_finished_, now() - last_finished_->finished_s);
  status.num_under_way = static_cast<int64_t>(unfinished_.size());
  status.quiet_s = now() - last_event_s_;
  status.issued = issued_;
  return status;
}

}  // namespace megalith
