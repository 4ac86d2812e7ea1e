// Tests and times a group's collectives. Values reveal a wrong order, a rank left out or counted twice, and late
// results. Bandwidths are nccl-tests' (doc/PERFORMANCE.md): algorithm is size over time, bus the slowest link's load.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/finding.h"

namespace megalith {

// One, a prime, and more than back ends send in one piece.
inline constexpr int64_t kCheckedCounts[] = {1, 1021, 262147};

// Compares each element of this rank's results: reductions in float32, bf16 and float64, movements also in int64. Ranks
// call with the same counts.
//
// A finding of topic "collectives" per collective: ok, or an error with operation, dtype, size, rank, first wrong index
// and both values. Sums of small integers are exact; averages may differ by one rounding, as NCCL multiplies by a
// rounded 1 / size. Throws a collective's failure.
Findings check_collectives(Group& group, std::span<const int64_t> counts = kCheckedCounts);

struct Bandwidth {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t bytes = 0;   // the larger buffer, as in nccl-tests
  double seconds = 0;  // per collective: the slowest rank's mean
  double algorithm_bytes_per_s = 0, bus_bytes_per_s = 0;
};

// 1 KiB, 16 KiB, … by factors of 16, up to `largest`.
std::vector<int64_t> bandwidth_sizes(int64_t largest_bytes);

// Bus over algorithm bandwidth.
double bus_factor(CollectiveKind kind, int group_size);

struct CollectiveTiming {
  std::vector<CollectiveKind> kinds = {};  // empty: all
  int64_t warmup = 1;                      // the first connects
  int64_t iterations = 0;                  // 0: what takes enough_s, at most 50
  double enough_s = 0.1;
  at::ScalarType dtype = at::kFloat;
  // Runs before each collective, whose time is then what it adds: ranks that share processors wait in turns.
  std::function<void()> work = {};
};

// Times collectives of about these sizes (rounded to the group's size); equal on all ranks. Bus bandwidths of one rank
// are 0.
std::vector<Bandwidth> measure_collectives(Group& group, std::span<const int64_t> sizes_bytes,
                                           const CollectiveTiming& timing = {});

// A line per collective and size.
std::string bandwidth_text(std::span<const Bandwidth> rows, int group_size);

}  // namespace megalith
