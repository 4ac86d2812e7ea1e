// Digests of the bits that a rank gives to and gets from its collectives: comparing two passes over the same work shows
// which rank first gave other bits (train/step_check.h).
//
// watched_factory() wraps each communicator, so that it sees what every view of it issues. An idle watch costs a branch
// per collective.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/groups.h"

namespace megalith {

// In this rank's order.
struct CollectiveBits {
  std::string place;  // the collective, in the same words on all its ranks: "dp/0+1 7"
  std::string text;   // "all_reduce dp grad bucket 0 12.0 KiB"
  bool is_output = false;
  at::Tensor digest;  // see device/bits_digest.h
};

class CollectiveWatch {
 public:
  // Start and end watching. All ranks call both at the same points.
  void begin();
  std::vector<CollectiveBits> end();

  // ---- For the watched groups, on the thread that issues or waits ----
  bool is_on() const { return is_on_; }
  // The next collective of the communicator, or transfer between two of its ranks; equal on those.
  std::string next_place(const std::string& between);
  void add(const std::string& place, const CollectiveRecord& record, bool is_output, const at::Tensor& tensor);

 private:
  bool is_on_ = false;  // set between steps, by the thread that issues
  std::mutex mutex_;    // backward on a device has its own thread
  std::vector<CollectiveBits> bits_;
  std::map<std::string, int64_t> counts_;
};

GroupFactory watched_factory(GroupFactory factory, std::shared_ptr<CollectiveWatch> watch);

}  // namespace megalith
