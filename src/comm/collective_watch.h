// Digests of collectives' inputs and outputs: comparing two passes over the same work shows which rank first differed
// (train/step_check.h). Watches communicators, hence all views. Idle, it costs a branch per collective.
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

struct CollectiveBits {
  std::string place;  // equal on all its ranks: "dp/0+1 7"
  std::string text;
  bool is_output = false;
  at::Tensor digest;  // device/bits_digest.h
};

class CollectiveWatch {
 public:
  // Call both on all ranks at the same points.
  void begin();
  std::vector<CollectiveBits> end();

  // ---- For watched groups, on the issuing or waiting thread ----
  bool is_on() const { return is_on_; }
  // The communicator's, or a pair's, next; equal on its ranks.
  std::string next_place(const std::string& between);
  void add(const std::string& place, const CollectiveRecord& record, bool is_output, const at::Tensor& tensor);

 private:
  bool is_on_ = false;  // set between steps by the issuing thread
  std::mutex mutex_;    // backward on a device has its own thread
  std::vector<CollectiveBits> bits_;
  std::map<std::string, int64_t> counts_;
};

GroupFactory watched_factory(GroupFactory factory, std::shared_ptr<CollectiveWatch> watch);

}  // namespace megalith
