// Whether a group's collectives do what they say, and how fast: every one with values that show a wrong order, a rank
// that is left out or counted twice, and a result that comes too late.
//
// What nccl-tests does for NCCL, for any back end behind Group. Bandwidths are defined as there
// (doc/PERFORMANCE.md): the algorithm's is the size over the time, the bus's is what the slowest link must carry.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/finding.h"

namespace megalith {

// Elements of the tensors that are sent: one, a prime, and more than a back end sends as one piece.
inline constexpr int64_t kCheckedCounts[] = {1, 1021, 262147};

// Runs every collective on every rank of the group and compares each element of this rank's results: reductions in
// float32, bf16 and float64, movements in these and int64. All ranks call it with the same counts.
//
// Returns a finding of the topic "collectives" for each collective: ok, or an error that names operation, dtype, size,
// rank, the first wrong index and both values. Sums are exact in every order, as their values are small whole numbers;
// averages may differ by one rounding, as NCCL multiplies by a rounded 1 / size.
// Throws what a collective fails with.
Findings check_collectives(Group& group, std::span<const int64_t> counts = kCheckedCounts);

struct Bandwidth {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t bytes = 0;   // all_gather, reduce_scatter, all_to_all: of the larger buffer, as nccl-tests counts
  double seconds = 0;  // of one collective; the slowest rank's mean
  double algorithm_bytes_per_s = 0, bus_bytes_per_s = 0;
};

// Sizes of a table: 1 KiB, 16 KiB, … in strides of 16, up to `largest`.
std::vector<int64_t> bandwidth_sizes(int64_t largest_bytes);

// The bus bandwidth over the algorithm's, for a group of this size.
double bus_factor(CollectiveKind kind, int group_size);

// Times every collective with float32 tensors of about these sizes (a multiple of the group's size); the same numbers
// on all ranks. A group of one has nothing to carry: its bus bandwidths are 0.
std::vector<Bandwidth> measure_collectives(Group& group, std::span<const int64_t> sizes_bytes);

// A table: a line a size, with time, algorithm bandwidth and bus bandwidth of every collective.
std::string bandwidth_text(std::span<const Bandwidth> rows, int group_size);

}  // namespace megalith
