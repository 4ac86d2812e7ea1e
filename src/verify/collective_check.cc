#include "verify/collective_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "core/error.h"
#include "core/strings.h"
#include "core/time.h"
#include "device/stream.h"

namespace megalith {
namespace {

constexpr at::ScalarType kReducedTypes[] = {at::kFloat, at::kBFloat16, at::kDouble};
constexpr at::ScalarType kMovedTypes[] = {at::kFloat, at::kBFloat16, at::kDouble, at::kLong};
constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin};
// bf16 has all integers up to 256.
constexpr int64_t kValueModulus = 251;
constexpr int64_t kSummandModulus = 61;

const char* type_text(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bf16";
    case at::kDouble:
      return "float64";
    default:
      return "int64";
  }
}

at::Tensor indices(int64_t count) { return at::arange(count, at::TensorOptions().dtype(at::kLong)); }

// From 1 to kSummandModulus; neighbours and salts differ.
at::Tensor summands(const at::Tensor& index, int64_t salt) {
  return index.mul(37).add(salt * 17).remainder(kSummandModulus).add(1);
}

// Rank `rank`'s int64 input to a reduction. Two ranks contribute to each element of a sum: exact in bf16 in any order,
// and omissions show. The second may be negative, to tell a maximum from the sum.
at::Tensor contribution(const at::Tensor& index, ReduceOp op, int rank, int size) {
  const at::Tensor is_first = index.remainder(size).eq(rank), is_second = index.add(1).remainder(size).eq(rank);
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    const at::Tensor sign = index.remainder(3).eq(0).to(at::kLong).mul(-2).add(1);
    return summands(index, 1).mul(is_first).add(summands(index, 2).mul(sign).mul(is_second));
  }
  const at::Tensor best = summands(index, 3), other = summands(index, 4 + rank).neg();
  const at::Tensor wins = at::where(is_first, best, other);
  return op == ReduceOp::kMax ? wins : wins.neg();
}

// Averages in float64.
at::Tensor expected_reduction(const at::Tensor& index, ReduceOp op, int size) {
  if (op == ReduceOp::kMax) return summands(index, 3);
  if (op == ReduceOp::kMin) return summands(index, 3).neg();
  const at::Tensor sign = index.remainder(3).eq(0).to(at::kLong).mul(-2).add(1);
  const at::Tensor sum = summands(index, 1).add(summands(index, 2).mul(sign));
  return op == ReduceOp::kSum ? sum : sum.to(at::kDouble).div(size);
}

// Rank `from`'s to `to` (0 for all). As int64, ranks and positions share no value.
at::Tensor message(int64_t count, int from, int to, at::ScalarType type) {
  const at::Tensor index = indices(count);
  if (type == at::kLong) return index.add((static_cast<int64_t>(from) * 65536 + to) << 32);
  return index.mul(37).add(from * 101 + to * 59).remainder(kValueModulus).sub(kValueModulus / 2);
}

class Outcome {
 public:
  Outcome(const Group& group, CollectiveKind kind) : group_(group), kind_(kind) {}

  void compare(const at::Tensor& found, const at::Tensor& expected, const std::string& what, bool is_rounded = false) {
    if (found.numel() == 0) return;
    const at::Tensor on_cpu = found.detach().cpu().view(-1);
    const at::Tensor wanted = expected.to(on_cpu.scalar_type()).view(-1);
    at::Tensor is_wrong = on_cpu.ne(wanted);
    if (is_rounded) {
      const double step = on_cpu.scalar_type() == at::kBFloat16 ? 1.0 / 128
                          : on_cpu.scalar_type() == at::kFloat  ? std::ldexp(1.0, -22)
                                                                : std::ldexp(1.0, -51);
      const at::Tensor reference = wanted.to(at::kDouble);
      // NaN is wrong.
      is_wrong = on_cpu.to(at::kDouble).sub(reference).abs().le(reference.abs().mul(step)).logical_not();
    }
    const int64_t num_wrong = is_wrong.sum().item<int64_t>();
    if (num_wrong == 0 || !mistake_.empty()) return;
    const int64_t place = is_wrong.to(at::kByte).argmax().item<int64_t>();
    mistake_ = fmt::format("{} of {} ({}): rank {} has {:.10g} at index {}, expected {:.10g}; {} of {} are wrong", what,
                           type_text(on_cpu.scalar_type()), format_count_of(on_cpu.numel()),
                           group_.ranks()[static_cast<size_t>(group_.rank())], on_cpu[place].item<double>(), place,
                           wanted[place].item<double>(), num_wrong, on_cpu.numel());
  }

  Finding finding(std::string fine) const {
    Finding result{"collectives", std::string(name_of(kind_)), FindingLevel::kOk, std::move(fine), ""};
    if (mistake_.empty()) return result;
    result.level = FindingLevel::kError;
    result.found = mistake_;
    result.remedy =
        "the communication library, its network or a device is at fault: try NCCL_ALGO=Ring, NCCL_PROTO=Simple, "
        "NCCL_P2P_DISABLE=1 one by one, and fewer machines";
    return result;
  }

 private:
  static std::string format_count_of(int64_t count) {
    return fmt::format("{} element{}", count, count == 1 ? "" : "s");
  }

  const Group& group_;
  CollectiveKind kind_;
  std::string mistake_;  // the first
};

at::Tensor to_device(const Group& group, const at::Tensor& values, at::ScalarType type) {
  return values.to(type).to(group.device()).contiguous();
}

at::Tensor room(const Group& group, int64_t count, at::ScalarType type) {
  // Never an expected value.
  return at::full({count}, -1000, at::TensorOptions().dtype(type).device(group.device()));
}

void check_all_reduce(Group& group, int64_t count, at::ScalarType type, ReduceOp op, Outcome& result) {
  const at::Tensor index = indices(count);
  const at::Tensor tensor = to_device(group, contribution(index, op, group.rank(), group.size()), type);
  group.all_reduce(tensor, op, "doctor").wait();
  result.compare(tensor, expected_reduction(index, op, group.size()), std::string(name_of(op)), op == ReduceOp::kAvg);
}

// A rank's part in a concatenation: smaller in large worlds.
int64_t rank_part(int64_t count, int group_size) {
  constexpr int64_t kMostTogether = int64_t{1} << 22;
  return std::min(count, std::max<int64_t>(kMostTogether / group_size, 1));
}

void check_reduce_scatter(Group& group, int64_t count, at::ScalarType type, ReduceOp op, Outcome& result) {
  const at::Tensor index = indices(count * group.size());
  const at::Tensor in = to_device(group, contribution(index, op, group.rank(), group.size()), type);
  const at::Tensor out = room(group, count, type);
  group.reduce_scatter(out, in, op, "doctor").wait();
  const at::Tensor own = index.narrow(0, group.rank() * count, count);
  result.compare(out, expected_reduction(own, op, group.size()), std::string(name_of(op)), op == ReduceOp::kAvg);
}

void check_all_gather(Group& group, int64_t count, at::ScalarType type, Outcome& result) {
  const at::Tensor out = room(group, count * group.size(), type);
  group.all_gather(out, to_device(group, message(count, group.rank(), 0, type), type), "doctor").wait();
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group.size(); ++rank) parts.push_back(message(count, rank, 0, type));
  result.compare(out, at::cat(parts), "gather");
}

// rows(from, to), of two columns.
void check_all_to_all(Group& group, at::ScalarType type, const std::function<int64_t(int, int)>& rows,
                      const std::string& what, Outcome& result) {
  constexpr int64_t kColumns = 2;
  std::vector<int64_t> in_splits, out_splits;
  std::vector<at::Tensor> sent, expected;
  for (int peer = 0; peer < group.size(); ++peer) {
    in_splits.push_back(rows(group.rank(), peer));
    out_splits.push_back(rows(peer, group.rank()));
    sent.push_back(message(in_splits.back() * kColumns, group.rank(), peer, type));
    expected.push_back(message(out_splits.back() * kColumns, peer, group.rank(), type));
  }
  const at::Tensor in = to_device(group, at::cat(sent), type).view({-1, kColumns});
  const at::Tensor wanted = at::cat(expected);
  const at::Tensor out = room(group, wanted.numel(), type).view({-1, kColumns});
  group.all_to_all(out, in, out_splits, in_splits, "doctor").wait();
  result.compare(out, wanted, what);
}

void check_broadcast(Group& group, int64_t count, at::ScalarType type, int root, Outcome& result) {
  const at::Tensor tensor =
      group.rank() == root ? to_device(group, message(count, root, 0, type), type) : room(group, count, type);
  group.broadcast(tensor, root, "doctor").wait();
  result.compare(tensor, message(count, root, 0, type), fmt::format("from rank {}", root));
}

// Both ways round the ring; a pair meets twice, so tags and order matter.
void check_send_receive(Group& group, int64_t count, at::ScalarType type, Outcome& result) {
  const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
  const at::Tensor from_previous = room(group, count, type), from_next = room(group, count, type);
  const at::Tensor forward = to_device(group, message(count, group.rank(), 1, type), type);
  const at::Tensor backward = to_device(group, message(count, group.rank(), 2, type), type);
  group
      .send_receive({Transfer::send(forward, next, 1), Transfer::receive(from_previous, previous, 1),
                     Transfer::send(backward, previous, 2), Transfer::receive(from_next, next, 2)},
                    "doctor")
      .wait();
  result.compare(from_previous, message(count, previous, 1, type), "ring forward");
  result.compare(from_next, message(count, next, 2, type), "ring backward");
}

// Preallocated.
std::function<void()> timed_collective(Group& group, CollectiveKind kind, int64_t bytes, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype).device(group.device());
  const int64_t count = bytes / static_cast<int64_t>(c10::elementSize(dtype)), part = count / group.size();
  const at::Tensor whole = at::zeros({count}, options), other = at::zeros({count}, options);
  const at::Tensor piece = at::zeros({part}, options);
  const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return [&group, whole] { group.all_reduce(whole, ReduceOp::kSum, "doctor").wait(); };
    case CollectiveKind::kAllGather:
      return [&group, whole, piece] { group.all_gather(whole, piece, "doctor").wait(); };
    case CollectiveKind::kReduceScatter:
      return [&group, whole, piece] { group.reduce_scatter(piece, whole, ReduceOp::kSum, "doctor").wait(); };
    case CollectiveKind::kAllToAll:
      return [&group, whole, other] { group.all_to_all(other, whole, {}, {}, "doctor").wait(); };
    case CollectiveKind::kBroadcast:
      return [&group, whole] { group.broadcast(whole, 0, "doctor").wait(); };
    case CollectiveKind::kSendReceive:
      return [&group, whole, other, next, previous] {
        group.send_receive({Transfer::send(whole, next), Transfer::receive(other, previous)}, "doctor").wait();
      };
    case CollectiveKind::kBarrier:
      break;
  }
  return [&group] { group.barrier("doctor").wait(); };
}

double seconds_of(Group& group, const std::function<void()>& collective, int64_t times) {
  group.barrier("doctor").wait();
  synchronize(group.device());
  const Stopwatch watch;
  for (int64_t i = 0; i < times; ++i) collective();
  synchronize(group.device());
  return group.reduced(watch.elapsed_s() / static_cast<double>(times), ReduceOp::kMax, "doctor");
}

std::string rate_text(double bytes_per_s) { return fmt::format("{:.3g}", bytes_per_s / 1e9); }

constexpr CollectiveKind kTimedKinds[] = {CollectiveKind::kAllReduce,     CollectiveKind::kAllGather,
                                          CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,
                                          CollectiveKind::kBroadcast,     CollectiveKind::kSendReceive};

}  // namespace

Findings check_collectives(Group& group, std::span<const int64_t> counts) {
  const at::NoGradGuard no_grad;
  const std::string sizes = fmt::format("{} elements", fmt::join(counts, ", "));
  Findings findings;
  Outcome all_reduce(group, CollectiveKind::kAllReduce), reduce_scatter(group, CollectiveKind::kReduceScatter);
  for (const int64_t count : counts) {
    const int64_t part = rank_part(count, group.size());
    for (const at::ScalarType type : kReducedTypes) {
      for (const ReduceOp op : kAllOps) check_all_reduce(group, count, type, op, all_reduce);
      for (const ReduceOp op : kAllOps) check_reduce_scatter(group, part, type, op, reduce_scatter);
    }
  }
  findings.push_back(all_reduce.finding("sum, avg, max, min in float32, bf16, float64; " + sizes));
  findings.push_back(reduce_scatter.finding("sum, avg, max, min in float32, bf16, float64; " + sizes));

  Outcome all_gather(group, CollectiveKind::kAllGather), all_to_all(group, CollectiveKind::kAllToAll);
  Outcome broadcast(group, CollectiveKind::kBroadcast), send_receive(group, CollectiveKind::kSendReceive);
  for (const int64_t count : counts) {
    const int64_t rows = div_up(count, group.size());
    for (const at::ScalarType type : kMovedTypes) {
      check_all_gather(group, rank_part(count, group.size()), type, all_gather);
      check_all_to_all(
          group, type, [&](int, int) { return rows; }, "even parts", all_to_all);
      // Zero to three times the usual, asymmetric.
      check_all_to_all(
          group, type, [&](int from, int to) { return (from * 3 + to) % 4 * rows; }, "uneven parts", all_to_all);
      check_send_receive(group, count, type, send_receive);
    }
    for (int root = 0; root < group.size(); ++root) check_broadcast(group, count, at::kLong, root, broadcast);
    for (const at::ScalarType type : kMovedTypes) check_broadcast(group, count, type, group.size() - 1, broadcast);
  }
  const std::string moved = "in float32, bf16, float64, int64; " + sizes;
  findings.push_back(all_gather.finding(moved));
  findings.push_back(all_to_all.finding("even and uneven parts " + moved));
  findings.push_back(broadcast.finding("from every rank; " + sizes));
  findings.push_back(send_receive.finding("both ways round the ring " + moved));
  group.barrier("doctor").wait();
  findings.push_back(Outcome(group, CollectiveKind::kBarrier).finding("returned"));
  return findings;
}

std::vector<int64_t> bandwidth_sizes(int64_t largest_bytes) {
  std::vector<int64_t> sizes;
  for (int64_t bytes = 1024; bytes <= largest_bytes; bytes *= 16) sizes.push_back(bytes);
  return sizes;
}

double bus_factor(CollectiveKind kind, int group_size) {
  const double p = group_size;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (p - 1) / p;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return (p - 1) / p;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSendReceive:
      return group_size > 1 ? 1 : 0;
    case CollectiveKind::kBarrier:
      break;
  }
  return 0;
}

std::vector<Bandwidth> measure_collectives(Group& group, std::span<const int64_t> sizes_bytes,
                                           const CollectiveTiming& timing) {
  const at::NoGradGuard no_grad;
  constexpr double kMostTimes = 50;
  const std::span<const CollectiveKind> kinds = timing.kinds.empty() ? std::span<const CollectiveKind>(kTimedKinds)
                                                                     : std::span<const CollectiveKind>(timing.kinds);
  std::vector<Bandwidth> rows;
  for (const int64_t asked : sizes_bytes) {
    const int64_t unit = static_cast<int64_t>(c10::elementSize(timing.dtype)) * group.size();
    const int64_t bytes = std::max<int64_t>((asked + unit - 1) / unit, 1) * unit;
    for (const CollectiveKind kind : kinds) {
      std::function<void()> collective = timed_collective(group, kind, bytes, timing.dtype);
      if (timing.work) collective = [alone = std::move(collective), &timing] { timing.work(), alone(); };
      seconds_of(group, collective, timing.warmup);
      int64_t times = timing.iterations;
      if (times == 0) {
        const double once = std::max(seconds_of(group, collective, 1), 1e-9);
        times = static_cast<int64_t>(std::clamp(timing.enough_s / once, 1.0, kMostTimes));
      }
      const double work_s = timing.work ? seconds_of(group, timing.work, times) : 0;
      const double seconds = std::max(seconds_of(group, collective, times) - work_s, 1e-9);
      const double rate = static_cast<double>(bytes) / seconds;
      rows.push_back({kind, bytes, seconds, rate, rate * bus_factor(kind, group.size())});
    }
  }
  return rows;
}

std::string bandwidth_text(std::span<const Bandwidth> rows, int group_size) {
  std::string text = fmt::format("{:<14} {:>10} {:>12} {:>12} {:>12}   ({} rank{})\n", "collective", "size", "time",
                                 "alg GB/s", "bus GB/s", group_size, group_size == 1 ? "" : "s");
  for (const CollectiveKind kind : kTimedKinds) {
    for (const Bandwidth& row : rows) {
      if (row.kind != kind) continue;
      const std::string time = row.seconds < 1e-3 ? fmt::format("{:.1f} us", row.seconds * 1e6)
                                                  : fmt::format("{:.2f} ms", row.seconds * 1e3);
      text += fmt::format("{:<14} {:>10} {:>12} {:>12} {:>12}\n", name_of(kind), format_bytes(row.bytes), time,
                          rate_text(row.algorithm_bytes_per_s), rate_text(row.bus_bytes_per_s));
    }
  }
  return text;
}

}  // namespace megalith
