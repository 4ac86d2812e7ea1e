// The time of traced work on a cluster: a roofline for operators, rings for collectives, and the order of the trace for
// what a collective hides.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "planner/cluster.h"
#include "planner/work_trace.h"

namespace megalith {

// Seconds by cause.
struct WorkTimes {
  double products = 0, fp8_products = 0, attention = 0, memory_bound = 0, host = 0;
  std::map<std::string, double> exposed;   // communication that computation waits for: "tp over the link"
  std::map<std::string, double> products_of;  // of both kinds, by shape: "8192x28672x4096"

  double communication() const;
  double total() const { return products + fp8_products + attention + memory_bound + host + communication(); }
  WorkTimes& add(const WorkTimes& other, double times = 1);
};

// A product, attention or memory-bound operator.
double operator_s(const TracedWork& work, const ChipRates& chip);

// Ranks of a group, and the nodes that they are on.
struct GroupSpan {
  double ranks = 1, nodes = 1;
  std::string_view link() const { return nodes > 1 ? "network" : "link"; }
};
GroupSpan span_of(std::span<const int> ranks, const Cluster& cluster);  // ascending

// A collective of `bytes`, the larger of input and output. Ranks of several nodes move parts within nodes and between
// them at once.
double collective_s(CollectiveKind kind, double bytes, const GroupSpan& group, const Cluster& cluster);

// Seconds that communication adds to a step with work_s of computation beside it, which it slows: on H100, A100, MI250
// and MI210, training computed 18.9 % longer overlapped, and took 10.2 % longer still in sequence (arXiv:2507.03114),
// so 0.189 / (1.102 * 1.189 - 1) = 0.61 of hidden time stays (ChipRates::hidden_share).
double exposed_s(double communication_s, double work_s, const ChipRates& chip);

// The passes of a block: forward, and the two parts of backward, which schedules may separate.
struct PassTimes {
  WorkTimes forward, input_backward, weight_backward;
};

// Collectives of one axis follow one another and run beside operators until a wait, exposed as exposed_s(); the host
// launches ahead.
//   seen_share  of attention's pairs
WorkTimes price_work(const WorkTrace& trace, const Cluster& cluster, double seen_share);
PassTimes price_passes(const WorkTrace& forward, const WorkTrace& backward, const Cluster& cluster, double seen_share);

}  // namespace megalith
