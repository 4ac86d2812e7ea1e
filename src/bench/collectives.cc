// megalith bench rccl and strided_allgather: collectives of the launched ranks.
//
// Primus's `benchmark rccl` and `benchmark strided-allgather`; bandwidths are nccl-tests'.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/bench.h"
#include "bench/report.h"
#include "cli/session.h"
#include "config/option_value.h"
#include "core/error.h"
#include "core/strings.h"
#include "verify/collective_check.h"

namespace megalith {
namespace {

constexpr std::pair<std::string_view, CollectiveKind> kOperations[] = {
    {"all_reduce", CollectiveKind::kAllReduce},         {"broadcast", CollectiveKind::kBroadcast},
    {"reduce_scatter", CollectiveKind::kReduceScatter}, {"all_gather", CollectiveKind::kAllGather},
    {"all_to_all", CollectiveKind::kAllToAll},          {"alltoall", CollectiveKind::kAllToAll},
    {"send_receive", CollectiveKind::kSendReceive}};

// "64K", "1MB", "2GiB", "1024"
std::optional<int64_t> bytes_of(const std::string& text) {
  constexpr std::string_view kUnits[] = {"", "k", "m", "g"};
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = parse_integer(text.substr(0, digits));
  std::string unit = lower_case(text.substr(digits));
  if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
  if (unit.ends_with('b')) unit.pop_back();
  const auto shift = 10 * (std::ranges::find(kUnits, unit) - std::begin(kUnits));
  if (!number || *number < 1 || shift > 30 || *number > INT64_MAX >> shift) return std::nullopt;
  return *number << shift;
}

int64_t checked_bytes(const std::string& text, std::string_view option, std::vector<UserError>& errors) {
  if (const auto bytes = bytes_of(text)) return *bytes;
  errors.emplace_back(fmt::format("{} has '{}'", option, text), "write a size such as 64K, 1M or 2G");
  return 1;
}

struct RcclOptions : BenchOptions {
  std::vector<std::string> op = {"all_reduce"}, sizes;
  std::string min_bytes = "1K", max_bytes = "128M";
  int64_t num_sizes = 12;

  void visit(OptionVisitor& v) {
    BenchOptions::visit(v);
    v.field("op", op,
            "Collectives to run: all_reduce, broadcast, reduce_scatter, all_gather, all_to_all, send_receive.");
    v.field("sizes", sizes, "Message sizes, 1K,16K,1M,..., instead of min_bytes to max_bytes.");
    v.field("min_bytes", min_bytes, "Smallest message.");
    v.field("max_bytes", max_bytes, "Largest message.");
    v.field("num_sizes", num_sizes, "Messages from min_bytes to max_bytes, by equal factors.").at_least(1);
  }

  std::vector<CollectiveKind> kinds(std::vector<UserError>& errors) const {
    std::vector<CollectiveKind> found;
    for (const std::string& name : op) {
      const auto* row = std::ranges::find(kOperations, name, &std::pair<std::string_view, CollectiveKind>::first);
      if (row != std::end(kOperations)) {
        found.push_back(row->second);
      } else {
        errors.emplace_back(fmt::format("op has '{}'", name),
                            "write all_reduce, broadcast, reduce_scatter, all_gather, all_to_all or send_receive");
      }
    }
    return found;
  }

  std::vector<int64_t> messages(std::vector<UserError>& errors) const {
    std::vector<int64_t> bytes;
    for (const std::string& text : sizes) bytes.push_back(checked_bytes(text, "sizes", errors));
    if (!bytes.empty()) return bytes;
    const auto least = static_cast<double>(checked_bytes(min_bytes, "min_bytes", errors));
    const double factor = static_cast<double>(checked_bytes(max_bytes, "max_bytes", errors)) / least;
    for (int64_t i = 0; i < num_sizes; ++i) {
      const double share = num_sizes == 1 ? 0 : static_cast<double>(i) / static_cast<double>(num_sizes - 1);
      bytes.push_back(std::llround(least * std::pow(factor, share)));
    }
    return bytes;
  }

  std::vector<UserError> check() const {
    std::vector<UserError> errors = BenchOptions::check();
    kinds(errors);
    messages(errors);
    return errors;
  }
};

struct StridedOptions : BenchOptions {
  std::vector<int64_t> sizes_mb = {64, 128, 256};
  int64_t stride = 8;
  bool parallel = false;

  StridedOptions() {
    iterations = 50;
    warmup = 10;
  }
  void visit(OptionVisitor& v) {
    BenchOptions::visit(v);
    v.field("sizes_mb", sizes_mb, "What each rank sends.").unit("MiB");
    v.field("stride", stride, "Ranks r, r + stride, r + 2 stride, ... are a group.").at_least(1);
    v.field("parallel", parallel, "Measure all groups at once instead of one after another.");
  }

  std::vector<UserError> check() const {
    std::vector<UserError> errors = BenchOptions::check();
    for (const int64_t size : sizes_mb) {
      if (size < 1 || size > 65536) errors.emplace_back(fmt::format("sizes_mb has {}", size), "write 1 to 65536 MiB");
    }
    return errors;
  }
};

BenchRow bandwidth_row(const Bandwidth& row, const std::string& ranks) {
  return {text_cell("collective", "collective", std::string(name_of(row.kind))),
          text_cell("ranks", "ranks", ranks),
          {"bytes", "size", row.bytes, format_bytes(row.bytes)},
          number_cell("ms", "ms", row.seconds * 1e3),
          number_cell("algorithm_gb_per_s", "alg GB/s", row.algorithm_bytes_per_s / 1e9),
          number_cell("bus_gb_per_s", "bus GB/s", row.bus_bytes_per_s / 1e9)};
}

void require_ranks(const Session& session, std::string_view topic) {
  if (session.world != nullptr) return;
  throw UserError(fmt::format("bench {} measures ranks that talk, and there is one", topic),
                  fmt::format("torchrun --no-python --nproc-per-node N megalith bench {}", topic));
}

CollectiveTiming timing_of(const BenchOptions& options, at::ScalarType dtype, std::vector<CollectiveKind> kinds) {
  return {.kinds = std::move(kinds), .warmup = options.warmup, .iterations = options.iterations, .dtype = dtype};
}

int measure_rccl(const Session& session, const RcclOptions& options) {
  require_ranks(session, "rccl");
  std::vector<UserError> none;
  const at::ScalarType dtype = session.resolved->derived.dtype;
  Group& world = *session.groups.world;
  const std::vector<Bandwidth> rows =
      measure_collectives(world, options.messages(none), timing_of(options, dtype, options.kinds(none)));
  if (!world.is_first()) return kExitSuccess;
  BenchReport report{"rccl", session.device, dtype, {}, {}};
  report.explanations = {fmt::format("means of {} calls after {} to warm up, of the slowest rank", options.iterations,
                                     options.warmup),
                         "size: the larger buffer; bus: what the slowest link carries, as nccl-tests count"};
  for (const Bandwidth& row : rows) report.rows.push_back(bandwidth_row(row, std::to_string(world.size())));
  write_bench_report(report, options);
  return kExitSuccess;
}

int measure_strided(const Session& session, const StridedOptions& options) {
  require_ranks(session, "strided_allgather");
  Group& world = *session.groups.world;
  if (world.size() % options.stride != 0 || world.size() == options.stride) {
    throw UserError(fmt::format("stride {} does not divide {} ranks into groups of several", options.stride,
                                world.size()),
                    "choose a smaller divisor, such as the ranks of each of several machines");
  }
  const int stride = static_cast<int>(options.stride), own = world.rank() % stride;
  std::vector<int> ranks(static_cast<size_t>(world.size() / stride));
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = own + static_cast<int>(i) * stride;
  const std::shared_ptr<Group> group = session.world->factory()(ranks, "strided");
  const at::ScalarType dtype = session.resolved->derived.dtype;
  std::vector<int64_t> bytes;
  for (const int64_t size : options.sizes_mb) bytes.push_back((size << 20) * group->size());
  std::vector<Bandwidth> rows;
  for (int turn = 0; turn < stride; ++turn) {
    if (options.parallel ? turn == 0 : turn == own) {
      rows = measure_collectives(*group, bytes, timing_of(options, dtype, {CollectiveKind::kAllGather}));
    }
    world.barrier("strided").wait();
  }
  at::Tensor seconds = at::empty({static_cast<int64_t>(rows.size())}, at::kDouble);
  for (size_t i = 0; i < rows.size(); ++i) seconds[static_cast<int64_t>(i)] = rows[i].seconds;
  const at::Tensor all = world.gathered(seconds.to(session.device), "strided").cpu().view({world.size(), -1});
  if (!world.is_first()) return kExitSuccess;
  BenchReport report{"strided_allgather", session.device, dtype, {}, {}};
  report.explanations = {options.parallel ? "all groups at once" : "one group after another",
                         "size: what a rank receives; a row for each group and size"};
  for (int first = 0; first < stride; ++first) {
    for (size_t i = 0; i < rows.size(); ++i) {
      Bandwidth row = rows[i];
      row.seconds = all[first][static_cast<int64_t>(i)].item<double>();
      row.algorithm_bytes_per_s = static_cast<double>(row.bytes) / row.seconds;
      row.bus_bytes_per_s = row.algorithm_bytes_per_s * bus_factor(row.kind, group->size());
      report.rows.push_back(bandwidth_row(row, fmt::format("{} + {} i", first, stride)));
    }
  }
  write_bench_report(report, options);
  return kExitSuccess;
}

template <typename Options>
int bench_collectives(CommandContext& context, const char* usage, int (*measure)(const Session&, const Options&)) {
  const Launch launch = join_launch(context);
  Options options;
  std::unique_ptr<Resolved> resolved = resolve_bench(context, options, launch.world_size);
  if (resolved->wants_help) return print_bench_help(context, *resolved, usage);
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] {
    const int code = measure(session, options);
    session.finish();
    return code;
  });
}

}  // namespace

CommandOptions bench_rccl_options() { return options_of<RcclOptions, Config>("bench rccl"); }
CommandOptions bench_strided_options() { return options_of<StridedOptions, Config>("bench strided_allgather"); }

int bench_rccl(CommandContext& context) {
  return bench_collectives<RcclOptions>(
      context, "torchrun --no-python --nproc-per-node N megalith bench rccl [--op all_reduce,...] [--sizes 1K,1M,...]",
      measure_rccl);
}

int bench_strided(CommandContext& context) {
  return bench_collectives<StridedOptions>(
      context,
      "torchrun --no-python --nproc-per-node N megalith bench strided_allgather [--stride 8] [--sizes_mb 64,...]",
      measure_strided);
}

}  // namespace megalith
