#include "train/step_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/exchange.h"
#include "core/error.h"
#include "core/host.h"
#include "core/json.h"
#include "device/bits_digest.h"

namespace megalith {
namespace {

constexpr std::string_view kReport = "differences of two passes";

// Reads 0-d tensors, perhaps of several devices, at once.
std::vector<int64_t> read_digests(const std::vector<at::Tensor>& digests) {
  std::vector<int64_t> values(digests.size());
  std::vector<at::Tensor> on_device;
  for (const at::Tensor& digest : digests) {
    if (!digest.is_cpu()) on_device.push_back(digest);
  }
  const at::Tensor fetched = on_device.empty() ? at::Tensor() : at::stack(on_device).to(at::kCPU);
  int64_t num_fetched = 0;
  for (size_t i = 0; i < digests.size(); ++i) {
    values[i] = digests[i].is_cpu() ? digests[i].item<int64_t>() : fetched[num_fetched++].item<int64_t>();
  }
  return values;
}

bool is_any(const Groups& groups, bool here) {
  return groups.world->reduced(here ? 1 : 0, ReduceOp::kMax, "bits that differ") > 0;
}

bool same_bits(const PassBits& a, const PassBits& b) {
  return a.digests == b.digests &&
         std::ranges::equal(a.collectives, b.collectives, {}, &CollectiveBits::place, &CollectiveBits::place);
}

// "rank 3 (host node7)"; of several "ranks 0, 1 (hosts a, b)".
std::string name_ranks(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (const int rank : ranks) {
    const std::string& host = hosts[static_cast<size_t>(rank)];
    if (std::ranges::find(names, host) == names.end()) names.push_back(host);
  }
  return fmt::format("rank{} {} (host{} {})", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "),
                     names.size() > 1 ? "s" : "", fmt::join(names, ", "));
}

const char* state_noun(std::string_view key) { return key == kModelKey ? "the weight" : "the optimizer's"; }

std::string text_of(const CheckpointTensor& tensor) {
  const std::string name = tensor.placement->pieces.empty() ? "(padding)" : tensor.placement->pieces[0].name;
  return tensor.key == kModelKey ? fmt::format("{} {}", state_noun(tensor.key), name)
                                 : fmt::format("{} {} of {}", state_noun(tensor.key), tensor.key, name);
}

}  // namespace

FirstDifference first_difference(const PassBits& a, const PassBits& b, std::span<const OwnedPart> parts) {
  using Kind = FirstDifference::Kind;
  const size_t common = std::min(a.collectives.size(), b.collectives.size());
  for (size_t i = 0; i < common; ++i) {
    const CollectiveBits &x = a.collectives[i], &y = b.collectives[i];
    if (x.place == y.place && x.is_output == y.is_output && a.digests[i] == b.digests[i]) continue;
    const bool is_other_order = x.place != y.place || x.is_output != y.is_output;
    return {.kind = x.is_output && !is_other_order ? Kind::kGot : Kind::kGave, .place = x.place, .text = x.text};
  }
  if (a.collectives.size() != b.collectives.size()) {
    return {.kind = Kind::kGave, .place = "", .text = "another number of collectives"};
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (a.digests[common + i] == b.digests[common + i]) continue;
    return {.kind = Kind::kGradient, .place = "", .text = parts[i].parameter->name()};
  }
  if (a.digests != b.digests) return {.kind = Kind::kSums, .place = "", .text = "losses or observations"};
  return {};
}

Verdict find_fault(std::span<const FirstDifference> differences,
                   const std::function<bool(int rank, const std::string& place)>& gave_other) {
  using Kind = FirstDifference::Kind;
  const int world = narrow<int>(std::ssize(differences));
  Verdict verdict;
  for (int rank = 0; rank < world; ++rank) {
    const Kind kind = differences[static_cast<size_t>(rank)].kind;
    if (kind != Kind::kNothing && kind != Kind::kGot) verdict.ranks.push_back(rank);
  }
  if (!verdict.ranks.empty()) return verdict;
  verdict.where = StepFault::Where::kCollective;
  for (int rank = 0; rank < world; ++rank) {
    const FirstDifference& difference = differences[static_cast<size_t>(rank)];
    if (difference.kind != Kind::kGot) continue;
    bool is_innocent = false;
    for (int giver = 0; giver < world && !is_innocent; ++giver) is_innocent = gave_other(giver, difference.place);
    if (!is_innocent) verdict.ranks.push_back(rank);
  }
  return verdict;
}

StepCheck::StepCheck(const DataParallel& data, const Groups& groups, std::shared_ptr<CollectiveWatch> watch,
                     State state)
    : data_(data), groups_(groups), watch_(std::move(watch)), state_(std::move(state)) {}

std::vector<int64_t> StepCheck::state_digests() const {
  std::vector<at::Tensor> digests;
  for (const CheckpointTensor& tensor : state_()) digests.push_back(bits_digest(tensor.local));
  return read_digests(digests);
}

void StepCheck::remember() { remembered_ = state_digests(); }

PassBits StepCheck::run_pass(const Pass& pass) {
  watch_->begin();
  const at::Tensor sums = pass();
  PassBits bits{.collectives = watch_->end(), .digests = {}};
  std::vector<at::Tensor> digests;
  for (const CollectiveBits& buffer : bits.collectives) digests.push_back(buffer.digest);
  for (const OwnedPart& part : data_.parts()) digests.push_back(bits_digest(part.grad));
  digests.push_back(bits_digest(sums));
  bits.digests = read_digests(digests);
  return bits;
}

void StepCheck::run(int64_t iteration, bool is_repeated, const Pass& pass) {
  MEGALITH_CHECK(!remembered_.empty() || state_().empty(), "a step is checked before its state was remembered");
  if (!is_repeated) {
    pass();
    return check_state(iteration);
  }
  const PassBits first = run_pass(pass), second = run_pass(pass);
  // Changed weights explain differing passes, so they are reported first.
  check_state(iteration);
  if (is_any(groups_, !same_bits(first, second))) throw_difference(iteration, first, second, pass);
}

void StepCheck::check_state(int64_t iteration) const {
  const std::vector<int64_t> now = state_digests();
  if (!is_any(groups_, now != remembered_)) return;
  Json report = {{"host", host_name()}, {"changed", Json::array()}};
  const std::vector<CheckpointTensor> tensors = state_();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (now[i] != remembered_[i]) report["changed"].push_back(text_of(tensors[i]));
  }
  std::string what;
  std::vector<int> ranks;
  std::vector<std::string> hosts;
  for (const std::string& text : gather_texts(*groups_.world, dump_json(report), kReport)) {
    const Json one = parse_json(text, kReport);
    const int rank = narrow<int>(std::ssize(hosts));
    hosts.push_back(json_get<std::string>(one, "host", kReport));
    const auto changed = json_get<std::vector<std::string>>(one, "changed", kReport);
    if (changed.empty()) continue;
    ranks.push_back(rank);
    what += fmt::format("{}of rank {} {}{}", what.empty() ? "" : "; ", rank, changed.front(),
                        changed.size() > 1 ? fmt::format(" and {} more", changed.size() - 1) : "");
  }
  throw StepFault(
      fmt::format("check_determinism at iteration {}: {} changed in memory after the last update: {}\n"
                  "  nothing was saved since. Resume from the newest checkpoint; where that rank's device or memory is "
                  "named again, leave it out",
                  iteration, name_ranks(ranks, hosts), what),
      StepFault::Where::kState, ranks.front(), /*is_persistent=*/false);
}

void StepCheck::throw_difference(int64_t iteration, const PassBits& first, const PassBits& second, const Pass& pass) {
  const PassBits third = run_pass(pass);
  const bool third_is_first = !is_any(groups_, !same_bits(third, first));
  const bool third_is_second = !is_any(groups_, !same_bits(third, second));
  const bool is_persistent = !third_is_first && !third_is_second;
  const FirstDifference mine = first_difference(first, second, data_.parts());
  const bool has_other_sums = first.digests.back() != second.digests.back();
  // Collectives that this rank gave other bits.
  Json gave = Json::array();
  const size_t common = std::min(first.collectives.size(), second.collectives.size());
  for (size_t i = 0; i < common; ++i) {
    if (!first.collectives[i].is_output && first.digests[i] != second.digests[i]) {
      gave.push_back(first.collectives[i].place);
    }
  }
  const Json report = {{"host", host_name()},   {"kind", static_cast<int>(mine.kind)}, {"place", mine.place},
                       {"text", mine.text},     {"gave", std::move(gave)},             {"sums", has_other_sums}};
  std::vector<FirstDifference> differences;
  std::vector<std::vector<std::string>> gave_by_rank;
  std::vector<std::string> hosts;
  bool is_forward = false;
  for (const std::string& text : gather_texts(*groups_.world, dump_json(report), kReport)) {
    const Json one = parse_json(text, kReport);
    hosts.push_back(json_get<std::string>(one, "host", kReport));
    differences.push_back({.kind = static_cast<FirstDifference::Kind>(json_get<int>(one, "kind", kReport)),
                           .place = json_get<std::string>(one, "place", kReport),
                           .text = json_get<std::string>(one, "text", kReport)});
    gave_by_rank.push_back(json_get<std::vector<std::string>>(one, "gave", kReport));
    is_forward = is_forward || json_get<bool>(one, "sums", kReport);
  }
  const Verdict verdict = find_fault(differences, [&](int rank, const std::string& place) {
    const std::vector<std::string>& places = gave_by_rank[static_cast<size_t>(rank)];
    return std::ranges::find(places, place) != places.end();
  });
  MEGALITH_CHECK(!verdict.ranks.empty(), "two passes differ and no rank is at fault");
  const FirstDifference& shown = differences[static_cast<size_t>(verdict.ranks.front())];
  std::string what;
  if (verdict.where == StepFault::Where::kCollective) {
    what = fmt::format("got other bits from {}, to which every rank gave the same", shown.text);
  } else {
    const char* begin = is_forward ? "computed other activations" : "computed another gradient";
    what = shown.kind == FirstDifference::Kind::kGave       ? fmt::format("{}, first seen in {}", begin, shown.text)
           : shown.kind == FirstDifference::Kind::kGradient ? fmt::format("{}, of {}", begin, shown.text)
                                                            : std::string(begin);
  }
  const std::string which = is_persistent    ? "a third pass agrees with neither: the fault is persistent"
                            : third_is_first ? "a third pass agrees with the first: the fault was transient"
                                             : "a third pass agrees with the second: the fault was transient";
  const char* remedy = is_persistent ? "leave that rank's device out, and resume from a checkpoint that is older than "
                                       "its faults; nothing was saved since"
                                     : "the model was not updated. Resume; where that rank's device is named again, "
                                       "leave it out";
  throw StepFault(
      fmt::format("check_determinism at iteration {}: the step repeated gives other bits: {} {}; {}\n  {}", iteration,
                  name_ranks(verdict.ranks, hosts), what, which, remedy),
      verdict.where, verdict.ranks.front(), is_persistent);
}

}  // namespace megalith
