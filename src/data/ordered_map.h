// Multi-threaded work on jobs with results in job order, for `prepare`.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace megalith {

template <typename Job>
class OrderedMap {
 public:
  // work  on a job, on any thread
  // take  gets finished jobs, on the caller's thread
  OrderedMap(int64_t num_threads, size_t most_bytes, std::function<void(Job&)> work, std::function<void(Job)> take)
      : most_jobs_(static_cast<size_t>(num_threads) * 4),
        most_bytes_(most_bytes),
        work_(std::move(work)),
        take_(std::move(take)) {
    for (int64_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~OrderedMap() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    has_work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  OrderedMap(const OrderedMap&) = delete;
  OrderedMap& operator=(const OrderedMap&) = delete;

  // Adds a job of num_bytes; first takes the oldest while too many wait. Rethrows errors of their work.
  void give(Job job, size_t num_bytes) {
    while (in_order_.size() >= most_jobs_) take();
    auto slot = std::make_unique<Slot>(std::move(job), num_bytes);
    num_bytes_ += num_bytes;
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(slot.get());
      in_order_.push_back(std::move(slot));
    }
    has_work_.notify_one();
    // An oversized job is finished before the next one is made.
    while (num_bytes_ > most_bytes_) take();
  }
  void finish() {
    while (!in_order_.empty()) take();
  }

 private:
  struct Slot {
    Slot(Job given, size_t bytes) : job(std::move(given)), num_bytes(bytes) {}
    Job job;
    size_t num_bytes;
    std::exception_ptr failure;
    bool is_done = false;
  };

  void take() {
    std::unique_ptr<Slot> slot;
    {
      std::unique_lock lock(mutex_);
      is_done_.wait(lock, [&] { return in_order_.front()->is_done; });
      slot = std::move(in_order_.front());
      in_order_.pop_front();
    }
    num_bytes_ -= slot->num_bytes;
    if (slot->failure) std::rethrow_exception(slot->failure);
    take_(std::move(slot->job));
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      has_work_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
      if (is_stopping_) return;
      Slot& slot = *waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      try {
        work_(slot.job);
      } catch (...) {
        slot.failure = std::current_exception();
      }
      lock.lock();
      slot.is_done = true;
      is_done_.notify_one();
    }
  }

  const size_t most_jobs_, most_bytes_;
  const std::function<void(Job&)> work_;
  const std::function<void(Job)> take_;
  size_t num_bytes_ = 0;  // given and not taken
  std::mutex mutex_;      // guards the members below
  std::condition_variable has_work_, is_done_;
  std::deque<Slot*> waiting_;
  std::deque<std::unique_ptr<Slot>> in_order_;  // changed only by the caller's thread
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace megalith
