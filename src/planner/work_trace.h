// The work of a pass over meta tensors on a device: products, attention, memory-bound operators and collectives, in the
// program's order, as it runs them (ops/operator.h, comm/group.h). Nothing here knows a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/groups.h"

namespace megalith {

enum class WorkKind {
  kProduct,     // m n k, `count` of them
  kAttention,   // flops of all pairs of queries and keys, whose heads have k channels
  kMemory,      // bytes read and written
  kCollective,  // begins
  kWait,        // for the collective with the same id
};

struct TracedWork {
  WorkKind kind = WorkKind::kMemory;
  std::string name = {};  // of an operator, or the label of a collective
  bool is_weight_gradient = false;
  bool is_backward = false;  // of attention
  double m = 0, n = 0, k = 0, count = 1;
  bool is_in_eight_bits = false, is_wide = false;  // else 16 bits
  double flops = 0, bytes = 0;
  CollectiveKind collective = CollectiveKind::kBarrier;
  std::string axis = {};
  std::shared_ptr<const std::vector<int>> ranks = {};  // world ranks
  int64_t id = -1;
};
using WorkTrace = std::vector<TracedWork>;

// While it lives, this thread's operators on meta tensors, and collectives of traced groups, are added to the trace.
//   eight_bit_recipe  the layers' recipe rounds to 8 bits; without a device for it, its operators run widened
//                     (nn/fp8_recipe.h): products of wide tensors count as 8-bit ones, ATen's operators not at all
class WorkRecorder {
 public:
  WorkRecorder(WorkTrace& trace, bool has_eight_bit_recipe);
  ~WorkRecorder();
  WorkRecorder(const WorkRecorder&) = delete;
  WorkRecorder& operator=(const WorkRecorder&) = delete;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// Groups of several ranks move nothing, and tell this thread's recorder.
GroupFactory traced_group_factory(int rank);

}  // namespace megalith
