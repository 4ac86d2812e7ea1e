// What a rank gave to its collectives and what it got from them, as digests of bits: by comparing two passes over the
// same work, the ranks learn which of them first gave other bits (train/step_check.h).
//
// A rank's groups are made of communicators; watched_factory() puts a watch around each, which sees what every view of
// it issues. While nothing is being watched that costs a branch a collective.
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

// One buffer of a collective, in the order in which this rank gave and got.
struct CollectiveBits {
  std::string place;  // which collective, the same words on all ranks that take part: "dp/0+1 7"
  std::string text;   // "all_reduce dp grad bucket 0 12.0 KiB"
  bool is_output = false;
  at::Tensor digest;  // see device/bits_digest.h
};

class CollectiveWatch {
 public:
  // From now on until end(). All ranks call both at the same points of their work.
  void begin();
  std::vector<CollectiveBits> end();

  // ---- Called by the watched groups, on the thread that issues or waits.
  bool is_on() const { return is_on_; }
  // The next collective of the communicator, or the next transfer between two of its ranks; equal on those.
  std::string next_place(const std::string& between);
  void add(const std::string& place, const CollectiveRecord& record, bool is_output, const at::Tensor& tensor);

 private:
  bool is_on_ = false;  // set between steps, by the thread that issues
  std::mutex mutex_;    // a device's backward runs in a thread of its own
  std::vector<CollectiveBits> bits_;
  std::map<std::string, int64_t> counts_;
};

// A factory of the same communicators, watched.
GroupFactory watched_factory(GroupFactory factory, std::shared_ptr<CollectiveWatch> watch);

}  // namespace megalith
