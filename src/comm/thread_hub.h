// A ThreadWorld's shared state: one lock, waiters, the first failure, meeting places.
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

  void progress(const Lock& lock);

  // Blocks until ready_at()'s time. PeerError if a rank failed, InternalError on time-out or deadlock. Callbacks run
  // under the lock.
  //   what_for  "all_reduce tp 'x' (ranks that have not issued it: 2)"
  void wait(Lock& lock, int rank, const std::function<std::optional<Time>()>& ready_at,
            const std::function<std::string()>& what_for);

  // PeerError if a rank failed.
  void check_alive(const Lock& lock) const;

  // Keeps the first, ignoring PeerErrors.
  void fail(int rank, std::exception_ptr error);
  void finish(int rank);
  std::exception_ptr failure();

  // `busy_until`: the link's state.
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

// Inputs are copies, constant once all have arrived.
struct ThreadCollective {
  explicit ThreadCollective(size_t size) : inputs(size), in_splits(size), out_splits(size), outputs(size) {}

  std::string description, axis;  // of the first to arrive; others must match
  int first = -1;                 // its position in the group
  std::vector<at::Tensor> inputs;
  std::vector<std::vector<int64_t>> in_splits, out_splits;  // of an all_to_all
  std::vector<std::pair<const char*, int64_t>> outputs;     // memory to be written
  std::vector<int> arrived;                                 // positions, in order of arrival
  std::optional<ThreadHub::Time> ready_at;

  std::once_flag reduce_once;
  at::Tensor reduced;
};

struct ThreadMessage {
  at::Tensor copy;  // once sent
  std::string send_axis, receive_axis;
  int send_tag = 0, receive_tag = 0;
  bool is_expected = false;  // receive issued
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::optional<ThreadHub::Time> ready_at;
};

// A group's. Guarded by the hub's lock.
struct ThreadMeeting {
  struct Channel {
    int64_t num_sent = 0, num_expected = 0;
    std::map<int64_t, std::shared_ptr<ThreadMessage>> open;  // by number: sent or expected
    ThreadHub::Time busy_until{};
  };
  std::map<int64_t, std::shared_ptr<ThreadCollective>> open;
  std::map<std::pair<int, int>, Channel> channels;  // by sender, receiver
  ThreadHub::Time busy_until{};
};

}  // namespace megalith
