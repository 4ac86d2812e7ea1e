#include "verify/layout_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/pieces.h"
#include "core/error.h"
#include "nn/expert_router.h"
#include "train/pipelined_model.h"
#include "train/step.h"

namespace megalith {
namespace {

std::string index_text(const at::Tensor& tensor, int64_t flat) {
  std::string text;
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    text = fmt::format("{}{}{}", flat % tensor.size(d), text.empty() ? "" : ", ", text);
    flat /= tensor.size(d);
  }
  return "[" + text + "]";
}

std::map<int64_t, at::Tensor> expert_biases(const BuiltModel& built) {
  std::map<int64_t, at::Tensor> biases;
  for (const auto& chunk : built.chunks) {
    for (const auto& [layer, router] : chunk->routers()) {
      if (router->expert_bias() == nullptr) continue;
      biases[layer] = router->expert_bias()->data().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    }
  }
  return biases;
}

class Comparer {
 public:
  Comparer(int first_rank, const CheckTolerance& tolerance) : first_rank_(first_rank), tolerance_(tolerance) {}

  // per_step  numbers per step
  void numbers(const std::vector<double>& actual, const std::vector<double>& expected, size_t per_step, size_t rank,
               const std::string& what) {
    MEGALITH_CHECK(actual.size() == expected.size(), "{} of {} steps, not {}", what, actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const double scale = std::abs(expected[i]);
      note(std::abs(actual[i] - expected[i]) / (scale > 0 ? scale : 1.0), what, [&] {
        return fmt::format("{}, {} of step {}: {} instead of {}", rank_text(rank), what, i / per_step + 1, actual[i],
                           expected[i]);
      });
    }
  }

  void tensors(std::span<const RankOutcome> ranks, HoldingMap RankOutcome::*member, const RankOutcome& expected,
               const RankOutcome* held_by_all, const std::string& what) {
    double largest = 0;
    for (const auto& [name, holding] : expected.*member) largest = std::max(largest, largest_of(holding.value));
    for (const auto& [name, holding] : expected.*member) {
      const std::string tensor = fmt::format("{} of {}", what, name);
      // In bf16 a key bias's gradient is visible noise, and Adam divides one moment by the other's root
      // (tests/layouts/bf16_test.cc).
      const double scale = std::max(largest_of(holding.value), tolerance_.floor * largest);
      at::Tensor is_held = at::zeros_like(holding.is_held);
      const auto add_held = [&](const RankOutcome& outcome) {
        const auto found = (outcome.*member).find(name);
        if (found == (outcome.*member).end() || found->second.is_held.sizes() != is_held.sizes()) return;
        is_held.logical_or_(found->second.is_held);
      };
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const auto found = (ranks[rank].*member).find(name);
        if (found != (ranks[rank].*member).end()) one_tensor(found->second, holding, scale, rank, tensor);
        if (held_by_all == nullptr) add_held(ranks[rank]);
      }
      if (held_by_all != nullptr) add_held(*held_by_all);
      if (is_held.all().item<bool>()) continue;
      note(kWrong, tensor, [&] {
        const int64_t first = is_held.reshape({-1}).logical_not().to(at::kInt).argmax().item<int64_t>();
        return fmt::format("{}: no rank holds element {}", tensor, index_text(is_held, first));
      });
    }
  }

  Comparison result;

 private:
  static constexpr double kWrong = std::numeric_limits<double>::infinity();

  static double largest_of(const at::Tensor& value) {
    return value.numel() == 0 ? 0 : value.abs().max().to(at::kDouble).item<double>();
  }
  std::string rank_text(size_t rank) const { return fmt::format("rank {}", first_rank_ + static_cast<int>(rank)); }

  void one_tensor(const Holding& actual, const Holding& expected, double scale, size_t rank, const std::string& what) {
    if (actual.value.sizes() != expected.value.sizes()) {
      note(kWrong, what, [&] { return fmt::format("{}, {}: another shape", rank_text(rank), what); });
      return;
    }
    const at::Tensor a = actual.value.to(at::kDouble), b = expected.value.to(at::kDouble);
    at::Tensor relative = (a - b).abs() / (scale > 0 ? scale : 1.0);
    relative = at::where(a.isfinite(), relative, at::full({}, kWrong, relative.options()));
    relative = at::where(actual.is_held, relative, at::zeros_like(relative));
    note(relative.max().item<double>(), what, [&] {
      const at::Tensor is_bad = (relative.reshape({-1}) <= tolerance_.relative).logical_not();
      const int64_t first = is_bad.to(at::kInt).argmax().item<int64_t>();
      return fmt::format("{}, {}, first bad index {} ({} of {} are bad): {} instead of {}", rank_text(rank), what,
                         index_text(a, first), is_bad.sum().item<int64_t>(), a.numel(),
                         a.reshape({-1})[first].item<double>(), b.reshape({-1})[first].item<double>());
    });
  }

  void note(double relative, const std::string& what, const std::function<std::string()>& describe) {
    if (!std::isfinite(relative)) relative = kWrong;
    result.worst = std::max(result.worst, relative);
    if (relative <= tolerance_.relative) return;
    if (std::find(result.differing.begin(), result.differing.end(), what) == result.differing.end()) {
      result.differing.push_back(what);
    }
    if (result.first_failure.empty()) {
      result.first_failure = fmt::format("{}; relative difference {:.3g}", describe(), relative);
    }
  }

  int first_rank_;
  CheckTolerance tolerance_;
};

}  // namespace

void hold(const OwnedPart& part, const at::Tensor& value, HoldingMap& into) {
  const Placement& placement = part.parameter->placement();
  const at::Tensor host = value.to(at::kCPU);
  for (const PieceView& view : piece_views(placement, host, part.range)) {
    const Piece& piece = view.piece;
    Holding& holding = into[piece.name];
    if (!holding.value.defined()) {
      holding.value = at::zeros(piece.shape, host.options());
      holding.is_held = at::zeros(piece.shape, at::kBool);
    }
    const std::vector<int64_t> origin(piece.shape.size(), 0);
    slice_box(holding.value, piece.canonical, origin).copy_(view.tensor);
    slice_box(holding.is_held, piece.canonical, origin).fill_(true);
  }
}

RankOutcome run_steps(const BuiltModel& built, DataParallel& data, const Groups& groups, at::Device device,
                      const CheckRun& run) {
  const BlockRunners runners = set_block_runners(built, data, device);
  Optimizer optimizer(data, groups, run.optimizer, run.kernels);
  optimizer.let_rest(run.resting, run.rest_steps);
  PipelinedModel model(built.view(), groups, device);
  if (run.graph_warmup_steps > 0) {
    model.use_graphs(std::make_unique<MicrobatchGraphs>(device, built.parameters(), run.graph_warmup_steps));
  }
  TrainStep step(model, *run.task, data, optimizer, groups, device);
  RankOutcome outcome;
  for (int i = 0; i < run.num_steps; ++i) {
    // TrainStep::run(), with a look at gradients in between.
    const StepResult result = step.compute_gradients(run.microbatches(i));
    if (i == 0) {
      for (const OwnedPart& part : data.parts()) hold(part, part.grad, outcome.gradients);
    }
    for (const NamedLoss& loss : result.losses) outcome.losses.push_back(loss.value);
    outcome.grad_norms.push_back(optimizer.step(run.lr, run.weight_decay).grad_norm);
    const std::map<int64_t, at::Tensor> before = expert_biases(built);
    step.after_update();
    const std::map<int64_t, at::Tensor> after = expert_biases(built);
    for (const ExpertLoad& load : expert_loads_of(result.observations)) {
      if (after.contains(load.layer)) {
        outcome.bias_moves.push_back({i, load, after.at(load.layer) - before.at(load.layer)});
      }
    }
  }
  data.wait_for_parameters();
  for (const OwnedPart& part : data.parts()) hold(part, part.model, outcome.parameters);
  for (const OwnedPart& part : data.model_parts()) {  // expert biases change without gradients
    if (part.parameter->is_trainable()) continue;
    hold(part, part.parameter->is_packed() ? part.parameter->unpacked() : part.model, outcome.parameters);
  }
  for (const auto& chunk : built.chunks) chunk->set_runner(nullptr);
  return outcome;
}

Comparison compare_with_one_rank(std::span<const RankOutcome> ranks, int first_rank, const RankOutcome& expected,
                                 const CheckTolerance& tolerance, const RankOutcome* held_by_all) {
  Comparer comparer(first_rank, tolerance);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    comparer.numbers({ranks[rank].losses.at(0)}, {expected.losses.at(0)}, 1, rank, "loss");
  }
  comparer.tensors(ranks, &RankOutcome::gradients, expected, held_by_all, "gradient");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    comparer.numbers(ranks[rank].grad_norms, expected.grad_norms, 1, rank, "gradient norm");
    comparer.numbers(ranks[rank].losses, expected.losses, expected.losses.size() / expected.grad_norms.size(), rank,
                     "loss");
  }
  comparer.tensors(ranks, &RankOutcome::parameters, expected, held_by_all, "parameter");
  comparer.result.num_gradients = std::ssize(expected.gradients);
  comparer.result.num_parameters = std::ssize(expected.parameters);
  return std::move(comparer.result);
}

std::string find_wrong_bias_move(const RankOutcome& outcome, double rate) {
  for (const ExpertBiasMove& move : outcome.bias_moves) {
    double mean = 0;
    for (const int64_t tokens : move.load.tokens) mean += static_cast<double>(tokens);
    mean /= static_cast<double>(move.load.tokens.size());
    for (size_t expert = 0; expert < move.load.tokens.size(); ++expert) {
      const auto tokens = static_cast<double>(move.load.tokens[expert]);
      const double expected = tokens < mean ? rate : tokens > mean ? -rate : 0;
      const double moved = move.moved[static_cast<int64_t>(expert)].item<double>();
      // float32 rounds values up to 2 by 2^-24 of them.
      if (std::abs(moved - expected) <= 1e-6) continue;
      return fmt::format(
          "expert bias of layer {}, expert {}, step {}: moved by {} with {} tokens, where the mean is {}",
          move.load.layer, expert, move.step + 1, moved, move.load.tokens[expert], mean);
    }
  }
  return "";
}

}  // namespace megalith
