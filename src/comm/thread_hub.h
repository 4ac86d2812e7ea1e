// The shared state of a ThreadWorld's threads: one lock, who waits for what, the first failure, and the meeting places
// of groups. Only for thread_group.cc and thread_world.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "comm/thread_world.h"

namespace megalith {

class ThreadHub {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Lock = std::unique_lock<std::mutex>;

  ThreadHub(int size, const ThreadWorldSettings& settings);

  Lock lock() { return Lock(mutex_); }
  const ThreadWorldSettings& settings() const { return settings_; }

  // Wakes waiting ranks. Requires the lock.
  void progress(const Lock& lock);

  // Blocks until the time that ready_at() gives. Throws PeerError if a rank failed, InternalError on time-out or
  // deadlock. ready_at and what_for are called with the lock held.
  //   what_for  "all_reduce tp 'x' (ranks that have not issued it: 2)"
  void wait(Lock& lock, int rank, const std::function<std::optional<Time>()>& ready_at,
            const std::function<std::string()>& what_for);

  // Throws PeerError if a rank failed. Requires the lock.
  void check_alive(const Lock& lock) const;

  // Keeps the first failure that is the rank's own.
  void fail(int rank, std::exception_ptr error);
  void finish(int rank);
  std::exception_ptr failure();

  // End of a transfer of `bytes` that may start now; `busy_until` is the state of its link.
  Time transfer_end(double bytes, Time& busy_until) const;

 private:
  struct Waiter {
    int rank;
    const std::function<std::optional<Time>()>* ready_at;
    const std::function<std::string()>* what_for;
  };

  bool is_stalled() const;
  std::string report() const;

  const int size_;
  const ThreadWorldSettings settings_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Waiter> waiters_;
  std::vector<bool> has_finished_;
  Time last_progress_ = Clock::now();
  std::exception_ptr failure_;
  int failed_rank_ = -1;
  std::string failure_text_;
};

// One collective, as ranks reach it. Inputs are copies, constant once all have come.
struct ThreadCollective {
  explicit ThreadCollective(size_t size) : inputs(size), in_splits(size), out_splits(size), outputs(size) {}

  std::string description, axis;  // of the first to come, which the others must match
  int first = -1;                 // its position in the group
  std::vector<at::Tensor> inputs;
  std::vector<std::vector<int64_t>> in_splits, out_splits;  // of an all_to_all
  std::vector<std::pair<const char*, int64_t>> outputs;     // memory that will be written
  std::vector<int> arrived;                                 // positions in the group, in order of arrival
  std::optional<ThreadHub::Time> ready_at;

  std::once_flag reduce_once;
  at::Tensor reduced;
};

struct ThreadMessage {
  at::Tensor copy;  // defined once sent
  std::string send_axis, receive_axis;
  int send_tag = 0, receive_tag = 0;
  bool is_expected = false;  // a receive was issued
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::optional<ThreadHub::Time> ready_at;
};

// State shared by the members of one group. Guarded by the hub's lock.
struct ThreadMeeting {
  struct Channel {
    int64_t num_sent = 0, num_expected = 0;
    std::map<int64_t, std::shared_ptr<ThreadMessage>> open;  // by number, sent or expected but not both
    ThreadHub::Time busy_until{};
  };
  std::map<int64_t, std::shared_ptr<ThreadCollective>> open;
  std::map<std::pair<int, int>, Channel> channels;            // by sender and receiver
  ThreadHub::Time busy_until{};
};

}  // namespace megalith
