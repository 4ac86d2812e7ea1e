#include "verify/parallel_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "checkpoint/pieces.h"
#include "comm/thread_world.h"
#include "core/error.h"
#include "core/philox.h"
#include "device/threads.h"
#include "train/adapter_start.h"
#include "train/frozen_weights.h"
#include "verify/check_batch.h"
#include "verify/document_check.h"

namespace megalith {
namespace {

constexpr int kExactSteps = 3, kConfiguredSteps = 1;

// float64 has 53 bits: a few thousand reordered operations differ by 1e-13 of the largest element; AdamW, dividing by
// the gradient's size, by at most 1e-10 in parameters.
constexpr CheckTolerance kExactTolerance = {.relative = 1e-9, .floor = 1e-4};
// float32 has 24 bits, 6e-8: sums of tens of terms through a few layers, computed in two ways, differ by 1e-6 of the
// largest element. Small tensors inherit large ones' rounding.
constexpr CheckTolerance kConfiguredTolerance = {.relative = 1e-4, .floor = 1e-2};

constexpr size_t kMostNames = 10;

// Norm weights of ones and biases of zeros would hide mix-ups.
void vary_vectors(DataParallel& data, uint64_t seed) {
  for (const OwnedPart& part : data.model_parts()) {
    for (const PieceView& view : piece_views(part.parameter->placement(), part.model, part.range)) {
      if (view.piece.shape.size() != 1) continue;
      const uint64_t key = make_philox_key(seed, "vary." + view.piece.name);
      at::Tensor noise = at::empty(view.tensor.sizes(), at::kDouble);
      double* out = noise.mutable_data_ptr<double>();
      for (int64_t i = 0; i < noise.numel(); ++i) {
        out[i] = 0.4 * uniform_at(key, static_cast<uint64_t>(view.piece.canonical.offset[0] + i)) - 0.2;
      }
      at::Tensor target = view.tensor;
      target.add_(noise.to(target.options()));
    }
  }
  data.publish();
  data.wait_for_parameters();
}

RankOutcome run_rank(const Resolved& resolved, Groups& groups, at::Device device, const CheckHooks& hooks,
                     std::optional<SilentDocument> silent = {}) {
  const Config& config = resolved.config;
  const Derived& d = resolved.derived;
  if (hooks.change_groups) hooks.change_groups(groups);
  const BuiltModel built = build_model(resolved, groups, device, !resolved.derived.data_parallel.use_torch_fsdp2);
  for (const auto& chunk : built.chunks) {
    if (hooks.change_model) hooks.change_model(*chunk, groups);
  }
  std::unique_ptr<DataParallel> data = make_data_parallel(resolved, built, groups, device);
  if (hooks.change_data_parallel) data = hooks.change_data_parallel(std::move(data), built, groups);
  const auto seed = static_cast<uint64_t>(config.train.seed);
  data->initialise(seed);
  vary_vectors(*data, seed);
  if (config.lora.enabled && config.lora.start().decomposes()) {
    begin_decomposed(*data, built, config.lora, seed, groups);
    data->publish();
    data->wait_for_parameters();
  }

  const CheckBatchShape shape{.num_samples = d.global_batch_size,
                              .sequence = d.seq_length,
                              .vocab_size = d.vocab_size,
                              .has_documents = config.data.reset_attention_mask,
                              .restarts_positions = config.data.reset_position_ids,
                              .silent = silent};
  const std::unique_ptr<Task> task = make_task(resolved);
  const auto microbatches = [&](int step) {
    Batch whole = hooks.read ? hooks.read(step) : make_check_batch(shape, step);
    if (!hooks.read) task->draw(whole);
    if (silent) silence(whole, *silent);
    const int rank = hooks.data_rank ? hooks.data_rank(groups) : groups.dp->rank();
    std::vector<Batch> batches;
    for (int64_t m = 0; m < d.num_microbatches; ++m) {
      batches.push_back(whole.rows((m * groups.dp->size() + rank) * d.micro_batch_size, d.micro_batch_size));
    }
    if (hooks.change_batches) hooks.change_batches(batches, groups);
    return batches;
  };
  std::set<const Parameter*> resting;
  if (config.train.thaw_at) resting = named_to_freeze(config, built.parameters());
  return run_steps(built, *data, groups, device,
                   {.num_steps = narrow<int>(d.train_iters),
                    .task = task.get(),
                    .microbatches = microbatches,
                    .optimizer = config.optimizer,
                    .kernels = config.runtime.kernels,
                    .resting = resting,
                    .rest_steps = config.train.thaw_at.value_or(0),
                    .graph_warmup_steps = hooks.graph_warmup_steps});
}

// Elements held by any rank.
HoldingMap sum_holdings(const HoldingMap& own, const HoldingMap& expected, Group& world) {
  HoldingMap all;
  for (const auto& [name, holding] : expected) {
    const auto found = own.find(name);
    const bool is_here = found != own.end() && found->second.is_held.sizes() == holding.is_held.sizes();
    const at::Tensor mask = is_here ? found->second.is_held : at::zeros_like(holding.is_held);
    const at::Tensor count = mask.to(world.device(), at::kFloat);
    world.all_reduce(count, ReduceOp::kSum, "elements that are held").wait();
    all[name].is_held = count.to(at::kCPU) > 0;
  }
  return all;
}

}  // namespace

std::vector<RankOutcome> run_as_threads(const Resolved& resolved, const CheckHooks& hooks,
                                        std::optional<SilentDocument> silent) {
  const int world_size = narrow<int>(resolved.derived.world_size);
  std::vector<RankOutcome> ranks(static_cast<size_t>(world_size));
  const Mesh mesh = Mesh::from_options(resolved.config.parallel, world_size);
  ThreadWorld(world_size, {.devices = hooks.devices}).run(mesh, [&](Groups& groups) {
    const at::Device device = hooks.devices == nullptr ? at::kCPU : hooks.devices->device_of(groups.rank);
    ranks[static_cast<size_t>(groups.rank)] = run_rank(resolved, groups, device, hooks, silent);
  });
  return ranks;
}

ParallelCheck::ParallelCheck(const Resolved& user, const ToyWorld& world, std::function<void(const std::string&)> say)
    : say_(std::move(say)) {
  passes_.push_back({.toy = make_toy_config(user, world, ToyPrecision::kExact, kExactSteps),
                     .tolerance = kExactTolerance,
                     .name = "float64",
                     .one_rank = {}});
  passes_.push_back({.toy = make_toy_config(user, world, ToyPrecision::kConfigured, kConfiguredSteps),
                     .tolerance = kConfiguredTolerance,
                     .name = "float32",
                     .one_rank = {}});
  if (!user.config.data.reset_attention_mask) return;
  for (const ToyPrecision precision : {ToyPrecision::kExact, ToyPrecision::kConfigured}) {
    documents_.push_back(make_toy_config(user, world, precision, /*num_steps=*/1));
    uncouple_tokens(documents_.back().layout->config.model);
  }
}

std::string ParallelCheck::find_touching(const ToyConfig& toy, const CheckHooks& hooks, Groups* groups,
                                         at::Device device) const {
  const Resolved& layout = *toy.layout;
  const auto run = [&](const SilentDocument& silent) {
    if (groups == nullptr) return megalith::run_as_threads(layout, hooks, silent);
    return std::vector<RankOutcome>{run_rank(layout, *groups, device, hooks, silent)};
  };
  if (say_) say_(fmt::format("documents in {}", c10::toString(layout.derived.dtype)));
  const double tolerance = document_tolerance(layout.config.model.has_experts(), layout.derived.dtype);
  const std::string failure = find_touching_documents(run, groups != nullptr ? groups->rank : 0, tolerance);
  return failure.empty() ? "" : fmt::format("{}: {}", c10::toString(layout.derived.dtype), failure);
}

const RankOutcome& ParallelCheck::one_rank(Pass& pass, at::Device device) {
  if (!pass.one_rank) {
    if (say_) say_(fmt::format("{}: one rank", pass.name));
    const SingleThreadedScope one_thread;  // tiny tensors: synchronising costs more
    Groups groups = Groups::single();
    pass.one_rank = run_rank(*pass.toy.one_rank, groups, device, {});
    // After one step they follow only the gradient's sign; float64 compares them.
    if (pass.toy.one_rank->derived.dtype == at::kFloat) pass.one_rank->parameters.clear();
  }
  return *pass.one_rank;
}

// Several lines, or "". why: found beyond the comparison.
std::string ParallelCheck::judge(const Pass& pass, const Comparison& found, const std::string& why) const {
  if (!why.empty()) return fmt::format("{}: {}", pass.name, why);
  if (found.is_ok()) return "";
  std::string text = fmt::format("{}: {}", pass.name, found.first_failure);
  const size_t shown = std::min(found.differing.size(), kMostNames);
  text += fmt::format("\n  {} thing{} differ{} by more than {}:", found.differing.size(),
                      found.differing.size() == 1 ? "" : "s", found.differing.size() == 1 ? "s" : "",
                      pass.tolerance.relative);
  for (size_t i = 0; i < shown; ++i) text += "\n    " + found.differing[i];
  if (shown < found.differing.size()) text += fmt::format("\n    and {} more", found.differing.size() - shown);
  return text;
}

ParallelReport ParallelCheck::run_as_threads(const CheckHooks* hooks) {
  ParallelReport report;
  const CheckHooks own_hooks = hooks == nullptr ? CheckHooks{} : *hooks;
  for (Pass& pass : passes_) {
    const RankOutcome& expected = one_rank(pass, at::kCPU);
    const Resolved& layout = *pass.toy.layout;
    if (say_) say_(fmt::format("{}: {} ranks", pass.name, layout.derived.world_size));
    std::string why = find_wrong_bias_move(expected, layout.config.model.moe_router_bias_update_rate);
    Comparison found;
    try {
      found = compare_with_one_rank(megalith::run_as_threads(layout, own_hooks), 0, expected, pass.tolerance);
    } catch (const std::exception& error) {
      why = error.what();  // mismatch, deadlock, broken invariant
    }
    report.failure = judge(pass, found, why);
    if (!report.is_ok()) return report;
    if (&pass != &passes_.front()) continue;
    report.worst = found.worst;
    report.num_steps = narrow<int>(layout.derived.train_iters);
    report.num_gradients = found.num_gradients;
    report.num_parameters = found.num_parameters;
  }
  for (const ToyConfig& toy : documents_) {
    report.has_documents = true;
    try {
      report.failure = find_touching(toy, own_hooks, nullptr, at::kCPU);
    } catch (const std::exception& error) {
      report.failure = fmt::format("documents: {}", error.what());
    }
    if (!report.is_ok()) return report;
  }
  return report;
}

bool ParallelCheck::agree_on(std::string& failure, const std::string& where, Group& world) {
  const double none = world.size();
  const double first = world.reduced(failure.empty() ? none : world.rank(), ReduceOp::kMin, "first rank that differs");
  if (first < none && failure.empty()) {
    failure =
        fmt::format("{}: rank {} differs from what it must be; its message says where", where, static_cast<int>(first));
  }
  return first >= none;
}

ParallelReport ParallelCheck::run_as_rank(Groups& groups, at::Device device) {
  ParallelReport report;
  for (Pass& pass : passes_) {
    const RankOutcome& expected = one_rank(pass, device);
    if (say_) say_(fmt::format("{}: {} ranks", pass.name, groups.world->size()));
    const RankOutcome own = run_rank(*pass.toy.layout, groups, device, {});
    RankOutcome held;
    held.gradients = sum_holdings(own.gradients, expected.gradients, *groups.world);
    held.parameters = sum_holdings(own.parameters, expected.parameters, *groups.world);
    const Comparison found = compare_with_one_rank({&own, 1}, groups.rank, expected, pass.tolerance, &held);
    const std::string why = find_wrong_bias_move(expected, pass.toy.layout->config.model.moe_router_bias_update_rate);
    report.failure = judge(pass, found, why);
    if (!agree_on(report.failure, pass.name, *groups.world)) return report;
    if (&pass != &passes_.front()) continue;
    report.worst = groups.world->reduced(found.worst, ReduceOp::kMax, "largest difference");
    report.num_steps = narrow<int>(pass.toy.layout->derived.train_iters);
    report.num_gradients = found.num_gradients;
    report.num_parameters = found.num_parameters;
  }
  for (const ToyConfig& toy : documents_) {
    report.has_documents = true;
    report.failure = find_touching(toy, {}, &groups, device);
    if (!agree_on(report.failure, "documents", *groups.world)) return report;
  }
  return report;
}

}  // namespace megalith
