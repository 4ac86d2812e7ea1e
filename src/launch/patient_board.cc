#include "launch/patient_board.h"

#include <chrono>
#include <utility>

namespace megalith {

struct PatientBoard::State {
  mutable std::mutex mutex;
  std::condition_variable changed;
  Question question;  // pending
  bool is_busy = false, is_gone = false, is_stopping = false;
  int64_t num_asked = 0, num_done = 0;

  bool is_free() const { return !is_busy && !question; }
};

PatientBoard::PatientBoard(std::shared_ptr<SharedBoard> board) : state_(std::make_shared<State>()) {
  thread_ = std::thread([state = state_, board = std::move(board)] {
    std::unique_lock lock(state->mutex);
    while (true) {
      state->changed.wait(lock, [&] { return state->question || state->is_stopping; });
      if (!state->question) return;
      Question question = std::exchange(state->question, nullptr);
      state->is_busy = true;
      lock.unlock();
      bool has_failed = false;
      try {
        question(*board);
      } catch (const std::exception&) {
        has_failed = true;
      }
      question = nullptr;
      lock.lock();
      state->is_busy = false;
      state->is_gone |= has_failed;
      ++state->num_done;
      state->changed.notify_all();
    }
  });
}

PatientBoard::~PatientBoard() {
  bool is_stuck;
  {
    std::unique_lock lock(state_->mutex);
    state_->is_stopping = true;
    state_->changed.notify_all();
    // Answers come soon or never.
    is_stuck = !state_->changed.wait_for(lock, std::chrono::milliseconds(500), [&] { return state_->is_free(); });
  }
  if (is_stuck) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

bool PatientBoard::run(Question question, double patience_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  const auto until = std::chrono::time_point_cast<std::chrono::steady_clock::duration>(end);
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_until(lock, until, [&] { return state_->is_free() || state_->is_gone; })) return false;
  if (state_->is_gone) return false;
  state_->question = std::move(question);
  const int64_t number = ++state_->num_asked;
  state_->changed.notify_all();
  return state_->changed.wait_until(lock, until, [&] { return state_->num_done >= number; }) && !state_->is_gone;
}

void PatientBoard::post(Question question) {
  std::lock_guard lock(state_->mutex);
  if (!state_->is_free() || state_->is_gone) return;
  state_->question = std::move(question);
  ++state_->num_asked;
  state_->changed.notify_all();
}

bool PatientBoard::is_gone() const {
  std::lock_guard lock(state_->mutex);
  return state_->is_gone;
}

}  // namespace megalith
