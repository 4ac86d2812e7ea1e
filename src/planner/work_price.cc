#include "planner/work_price.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace megalith {
namespace {

// A product's output is cut into tiles, and every unit takes one at a time: sides round up, and the last wave is part
// empty. Smaller tiles read operands more often. Where tiles are few, K is split.
struct Tile {
  double m, n, share;
};
constexpr Tile kTiles[] = {{128, 256, 1}, {256, 128, 1}, {128, 128, 0.9}, {64, 128, 0.7}, {128, 64, 0.7}};
// A tile's loads before its first product and stores after its last take as long as this much of K.
constexpr double kRamp = 128;

double product_flops_on(const TracedWork& work, double units) {
  if (units <= 0) return 2 * work.m * work.n * work.k * work.count;
  double least = HUGE_VAL;
  for (const Tile& tile : kTiles) {
    const double tiles = std::ceil(work.m / tile.m) * std::ceil(work.n / tile.n) * work.count;
    for (const double splits : {1.0, 2.0, 4.0, 8.0}) {
      const double waves = std::ceil(tiles * splits / units);
      least = std::min(least, 2 * waves * units * tile.m * tile.n * (work.k / splits + kRamp) / tile.share);
      if (tiles * splits >= units) break;
    }
  }
  return least;
}

// An operand in 16 bits is read, and written in 8 with its transpose. Weight gradients find both rounded, and weights
// are rounded once a step.
double rounding_bytes(const TracedWork& work) {
  constexpr double kReadAndWritten = 2 + 1 + 1;
  return work.is_in_eight_bits && !work.is_weight_gradient ? kReadAndWritten * work.m * work.k * work.count : 0;
}

}  // namespace

double WorkTimes::communication() const {
  double sum = 0;
  for (const auto& [name, seconds] : exposed) sum += seconds;
  return sum;
}

WorkTimes& WorkTimes::add(const WorkTimes& other, double times) {
  products += times * other.products;
  fp8_products += times * other.fp8_products;
  attention += times * other.attention;
  memory_bound += times * other.memory_bound;
  host += times * other.host;
  for (const auto& [name, seconds] : other.exposed) exposed[name] += times * seconds;
  for (const auto& [name, seconds] : other.products_of) products_of[name] += times * seconds;
  return *this;
}

double operator_s(const TracedWork& work, const ChipRates& chip) {
  const double memory = chip.memory_tb_per_s * 1e12 * chip.memory_share, moving = work.bytes / memory;
  if (work.kind == WorkKind::kAttention) {
    // Exponentials do not shrink with the heads: FlashAttention-3 reaches two thirds with 64 channels. Calibration
    // measures the heads it is for.
    constexpr double kWholeHead = 128;
    const double of_head = chip.units > 0 ? std::sqrt(std::clamp(work.k / kWholeHead, 0.01, 1.0)) : 1;
    const double share = of_head * (work.is_backward ? chip.attention_backward_share : chip.attention_share);
    return std::max(moving, work.flops / (chip.tflops * 1e12 * chip.product_share * share));
  }
  if (work.kind != WorkKind::kProduct) return moving;
  double rate = chip.tflops * chip.product_share;
  if (work.is_in_eight_bits && chip.fp8_tflops > 0) rate = chip.fp8_tflops * chip.fp8_share;
  if (work.is_wide && chip.fp32_tflops > 0) rate = chip.fp32_tflops * chip.product_share;
  const double flops = product_flops_on(work, static_cast<double>(chip.units));
  return std::max(moving, flops / (rate * 1e12)) + rounding_bytes(work) / memory;
}

GroupSpan span_of(std::span<const int> ranks, const Cluster& cluster) {
  GroupSpan span{.ranks = static_cast<double>(ranks.size()), .nodes = 0};
  int64_t last = -1;
  for (const int rank : ranks) {
    const int64_t node = rank / cluster.gpus_per_node;
    if (node != last) ++span.nodes;
    last = node;
  }
  return span;
}

double collective_s(CollectiveKind kind, double bytes, const GroupSpan& group, const Cluster& cluster) {
  const double n = group.ranks, nodes = group.nodes, local = n / nodes;
  if (n < 2) return 0;
  const ChipRates& chip = cluster.chip;
  double of_sums = 0;
  if (kind == CollectiveKind::kAllReduce) of_sums = chip.all_reduce_gb_per_s;
  if (kind == CollectiveKind::kReduceScatter) of_sums = chip.reduce_scatter_gb_per_s;
  const double link = bytes / (1e9 * (of_sums > 0 ? of_sums : chip.link_gb_per_s));
  const double network = bytes / (1e9 * (of_sums > 0 ? of_sums : chip.network_gb_per_s));
  double within = link * (local - 1) / local, between = network / local * (nodes - 1) / nodes;
  // Gathers and scatters go round a ring of nodes, reductions up and down a tree.
  double local_steps = std::log2(local), node_steps = nodes - 1;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      within *= 2, between *= 2, local_steps *= 2, node_steps = 2 * std::log2(nodes);
      break;
    case CollectiveKind::kAllToAll:
      within = link * (local - 1) / n, between = network * (n - local) / n;
      local_steps = std::min(1.0, local_steps), node_steps = std::min(1.0, node_steps);
      break;
    case CollectiveKind::kSendReceive:
      within = nodes > 1 ? 0 : link, between = nodes > 1 ? network : 0;
      local_steps = nodes > 1 ? 0 : 1, node_steps = nodes > 1 ? 1 : 0;
      break;
    default:
      break;
  }
  return std::max(within, between) + 1e-6 * (local_steps * chip.link_us + node_steps * chip.network_us);
}

double exposed_s(double communication_s, double work_s, const ChipRates& chip) {
  const double hidden = std::clamp(work_s, 0.0, communication_s);
  return communication_s - (1 - chip.hidden_share) * hidden;
}

WorkTimes price_work(const WorkTrace& trace, const Cluster& cluster, double seen_share) {
  WorkTimes times;
  double now = 0, launched = 0;
  std::map<std::string, double> free;  // by axis
  struct Running {
    double begin, end;
    std::string name;
  };
  std::map<int64_t, Running> running;
  for (const TracedWork& work : trace) {
    if (work.kind == WorkKind::kWait) {
      const auto found = running.find(work.id);
      if (found == running.end()) continue;
      const auto& [begin, end, name] = found->second;
      const double queued = std::max(0.0, begin - now);
      const double exposed = queued + exposed_s(end - begin, now - begin, cluster.chip);
      times.exposed[name] += exposed;
      now += exposed;
      running.erase(found);
      continue;
    }
    launched += 1e-6 * cluster.chip.operator_us;
    if (work.kind == WorkKind::kCollective) {
      double& end = free[work.axis];
      const GroupSpan group = span_of(*work.ranks, cluster);
      const double begin = std::max(end, now);
      end = begin + collective_s(work.collective, work.bytes, group, cluster);
      running[work.id] = {begin, end, fmt::format("{} over the {}", work.axis, group.link())};
      continue;
    }
    TracedWork seen = work;
    if (work.kind == WorkKind::kAttention) seen.flops *= seen_share;
    const double seconds = operator_s(seen, cluster.chip);
    now += seconds;
    switch (work.kind) {
      case WorkKind::kProduct:
        (work.is_in_eight_bits ? times.fp8_products : times.products) += seconds;
        times.products_of[fmt::format("{:.0f}x{:.0f}x{:.0f}", work.m, work.n, work.k)] += seconds;
        break;
      case WorkKind::kAttention:
        times.attention += seconds;
        break;
      default:
        times.memory_bound += seconds;
    }
  }
  times.host = std::max(0.0, launched - now);
  return times;
}

PassTimes price_passes(const WorkTrace& forward, const WorkTrace& backward, const Cluster& cluster, double seen_share) {
  WorkTrace weights;
  for (const TracedWork& work : backward) {
    if (work.is_weight_gradient) weights.push_back(work);
  }
  PassTimes passes{.forward = price_work(forward, cluster, seen_share),
                   .input_backward = price_work(backward, cluster, seen_share),
                   .weight_backward = price_work(weights, cluster, seen_share)};
  // In one pass, weight gradients hide what the other half waits for.
  passes.weight_backward.host = 0;
  passes.input_backward.add(passes.weight_backward, -1);
  return passes;
}

}  // namespace megalith
