#include "layouts/layout.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "comm/thread_world.h"
#include "models/tiny_models.h"
#include "parallel/fsdp.h"
#include "parallel/grad_buffer.h"
#include "parallel/offload.h"
#include "parallel/recompute.h"
#include "parallel/sharded_buffer.h"

namespace megalith::test {
namespace {

constexpr double kLearningRate = 1e-2, kWeightDecay = 0.1;
constexpr int64_t kBucketElements = 700;  // several buckets, of uneven sizes

// Eight experts; the weights of few tokens decide, so that a wrong sum shows.
void add_experts(const Task& task, ModelConfig& config) {
  config.num_experts = 8;
  config.moe_ffn_hidden_size = 16;
  config.moe_router_topk = 2;
  config.moe_aux_loss_coeff = 0.02;
  config.moe_z_loss_coeff = 0.01;
  if (task.has_capacity) config.moe_expert_capacity_factor = 0.75;
  if (task.family == "mixtral") return;
  config.group_query_attention = config.add_qkv_bias = false;
  config.multi_latent_attention = config.qk_layernorm = true;
  config.q_lora_rank = 10;
  config.kv_lora_rank = 12;
  config.qk_head_dim = 4;
  config.qk_pos_emb_head_dim = 2;
  config.v_head_dim = 3;
  config.rotary_scaling_factor = 4;
  config.mscale = config.mscale_all_dim = 1;
  config.original_max_position_embeddings = 16;
  config.moe_layer_freq = moe_layer_freq_text(1, task.num_layers);
  config.num_shared_experts = 1;
  config.moe_router_score_function = RouterScore::kSigmoid;
  config.moe_router_enable_expert_bias = true;
  config.moe_router_num_groups = 4;
  config.moe_router_group_topk = 2;
  config.moe_router_topk_scaling_factor = 2.5;
  config.moe_router_load_balancing_type = RouterBalancing::kSeqAuxLoss;
  config.mtp_num_layers = 1;
}

ModelConfig config_of(const Task& task) {
  ModelConfig config = tiny_config();
  config.num_layers = task.num_layers;
  config.hidden_size = 20;
  config.ffn_hidden_size = 24;
  config.num_attention_heads = 8;
  config.kv_channels = 4;
  config.num_query_groups = task.num_kv_heads;
  config.vocab_size = 37;  // padded to 40, 48 and 64 rows for 2, 4 and 8 ranks: some have little else
  config.make_vocab_size_divisible_by = 4;
  config.untie_embeddings_and_output_weights = !task.is_tied;
  config.add_qkv_bias = task.has_qkv_bias;
  config.attention_dropout = config.hidden_dropout = task.has_dropout ? 0.2 : 0;
  if (task.has_experts()) add_experts(task, config);
  return config;
}

// Standard deviation 0.2 (uniform), norms around 1.
TensorMap weights_of(const Module& model, at::ScalarType dtype) {
  TensorMap weights = golden_weights(model, at::kDouble);
  for (auto& [name, tensor] : weights) {
    const bool is_norm = tensor.dim() == 1 && name.ends_with(".weight");
    tensor = (is_norm ? tensor : tensor * std::sqrt(3.0)).to(dtype);
  }
  return weights;
}

// The whole global batch of a step. Samples differ in their numbers of valid tokens, and one has none.
Batch global_batch(const Task& task, const ModelConfig& config, int step) {
  const int64_t b = task.global_batch, s = task.sequence;
  Batch batch;
  batch.tokens = at::empty({b, s}, at::kLong);
  batch.labels = at::empty({b, s}, at::kLong);
  batch.loss_weights = at::empty({b, s}, at::kFloat);
  batch.position_ids = at::arange(s, at::kLong).repeat({b, 1});
  batch.sample_index = at::arange(step * b, (step + 1) * b, at::kLong);
  if (task.has_documents) batch.document_ids = at::zeros({b, s}, at::kInt);
  auto tokens = batch.tokens.accessor<int64_t, 2>();
  auto labels = batch.labels.accessor<int64_t, 2>();
  auto weights = batch.loss_weights.accessor<float, 2>();
  for (int64_t row = 0; row < b; ++row) {
    for (int64_t i = 0; i < s; ++i) {
      const auto draw = [&](uint64_t tensor) {
        return (unit_value(tensor + 10 * static_cast<uint64_t>(step), static_cast<uint64_t>(row * s + i)) + 1) / 2;
      };
      tokens[row][i] = static_cast<int64_t>(draw(100) * static_cast<double>(*config.vocab_size));
      labels[row][i] = static_cast<int64_t>(draw(101) * static_cast<double>(*config.vocab_size));
      const bool is_valid = row != 1 && draw(102) < 0.2 + 0.8 * static_cast<double>(row) / static_cast<double>(b);
      weights[row][i] = is_valid ? 0.25F * static_cast<float>(std::ceil(4 * draw(103))) : 0.0F;
    }
    if (!task.has_documents) continue;
    const int64_t cut = row % (s - 1) + 1;  // a second document, its positions from 0
    batch.document_ids[row].narrow(0, cut, s - cut).fill_(1);
    batch.position_ids[row].narrow(0, cut, s - cut).sub_(cut);
  }
  return batch;
}

Batch rows_of(const Batch& whole, int64_t begin, int64_t count) {
  Batch rows;
  for (at::Tensor Batch::*member : {&Batch::tokens, &Batch::labels, &Batch::loss_weights, &Batch::position_ids,
                                    &Batch::document_ids, &Batch::sample_index}) {
    if ((whole.*member).defined()) rows.*member = (whole.*member).narrow(0, begin, count).clone();
  }
  return rows;
}

std::vector<Batch> microbatches(const Layout& layout, const Groups& groups, const ModelConfig& config, int step,
                                const Mistake* mistake) {
  const Batch whole = global_batch(layout.task, config, step);
  const int rank = mistake != nullptr && mistake->data_rank ? mistake->data_rank(groups) : groups.dp->rank();
  std::vector<Batch> batches;
  for (int64_t m = 0; m < layout.num_microbatches(); ++m) {
    batches.push_back(rows_of(whole, (m * layout.dp + rank) * layout.micro_batch, layout.micro_batch));
    if (mistake != nullptr && mistake->change_batch) mistake->change_batch(batches.back(), groups);
  }
  if (mistake != nullptr && mistake->change_batches) mistake->change_batches(batches, groups);
  return batches;
}

// Adds what a part holds to the canonical tensors of its pieces.
void hold(const OwnedPart& part, const at::Tensor& value, HoldingMap& into) {
  const Placement& placement = part.parameter->placement();
  at::Tensor local = value, is_held = at::ones(value.sizes(), at::kBool);
  if (part.range) {
    local = at::zeros({placement.num_local_elements()}, value.options());
    is_held = at::zeros({placement.num_local_elements()}, at::kBool);
    local.narrow(0, part.range->begin, part.range->size()).copy_(value);
    is_held.narrow(0, part.range->begin, part.range->size()).fill_(true);
    local = local.view(placement.local_shape);
    is_held = is_held.view(placement.local_shape);
  }
  for (const Piece& piece : placement.pieces) {
    Holding& holding = into[piece.name];
    if (!holding.value.defined()) {
      holding.value = at::zeros(piece.shape, value.options());
      holding.is_held = at::zeros(piece.shape, at::kBool);
    }
    const auto oriented = [&](const at::Tensor& tensor) { return piece.is_transposed ? tensor.t() : tensor; };
    const at::Tensor mask = oriented(box_view(is_held, piece.local));
    at::Tensor target = box_view(holding.value, piece.canonical);
    target.copy_(at::where(mask, oriented(box_view(local, piece.local)), target));
    box_view(holding.is_held, piece.canonical).logical_or_(mask);
  }
}

RankOutcome run_rank(Groups& groups, const Layout& layout, const Precision& precision, int num_steps,
                     const Mistake* mistake) {
  if (mistake != nullptr && mistake->change_groups) mistake->change_groups(groups);
  ModelConfig config = config_of(layout.task);
  config.moe_token_dispatcher_type = layout.dispatcher;
  config.moe_shared_expert_overlap = layout.overlaps_shared_expert;
  LayerContext context = tiny_context(groups, precision.dtype, precision.kernels);
  context.is_sequence_parallel = layout.is_sequence_parallel;
  context.recompute = layout.recompute.selective();
  context.context_parallel_kinds = context_parallel_kinds({.cp_comm_type = layout.cp_comm_type});
  PipelinePlan plan =
      make_pipeline_plan(layout.pipeline, layout.pp, config.num_layers, config.num_prediction_modules());
  if (mistake != nullptr && mistake->change_pipeline) plan = mistake->change_pipeline(std::move(plan), groups);
  const BuiltModel built = build_chunks(config, context, plan, layout.recompute);
  const TensorMap weights = weights_of(*test::build_model(config, tiny_context(Groups::single())), precision.dtype);
  for (const auto& chunk : built.chunks) {
    if (mistake != nullptr && mistake->change_model) mistake->change_model(*chunk, groups);
    for (Parameter* parameter : chunk->parameters()) parameter->data().zero_();  // padding rows
  }
  for (const auto& chunk : built.chunks) test::load(*chunk, weights);

  std::unique_ptr<DataParallel> data;
  if (layout.data_parallel.make) {
    data = layout.data_parallel.make(built, groups);
  } else {
    const GradBufferOptions options{.bucket_elements = kBucketElements};
    data = std::make_unique<GradBuffer>(built.parameters(), groups, options);
  }
  if (mistake != nullptr && mistake->change_data_parallel) {
    data = mistake->change_data_parallel(std::move(data), built, groups);
  }
  HostOffload offload(at::kCPU);
  std::vector<std::unique_ptr<RecomputeRunner>> runners;
  for (size_t chunk = 0; chunk < built.chunks.size(); ++chunk) {
    runners.push_back(std::make_unique<RecomputeRunner>(built.recompute[chunk], data->runner(), &offload));
    built.chunks[chunk]->set_runner(built.recompute[chunk].is_empty() ? data->runner() : runners.back().get());
  }
  Optimizer optimizer(*data, groups, {.clip_grad = kClipGrad}, precision.kernels);
  PipelinedModel pipeline(built.view(), groups, at::kCPU);
  TrainStep step(pipeline, *data, optimizer, groups, at::kCPU);

  RankOutcome outcome;
  for (int i = 0; i < num_steps; ++i) {
    const std::vector<Batch> batches = microbatches(layout, groups, config, i, mistake);
    // What TrainStep::run() does, with a look at the gradients in between.
    const StepResult result = step.compute_gradients(batches);
    if (i == 0) {
      for (const OwnedPart& part : data->parts()) hold(part, part.grad, outcome.gradients);
    }
    for (const NamedLoss& loss : result.losses) outcome.losses.push_back(loss.value);
    outcome.grad_norms.push_back(optimizer.step(kLearningRate, kWeightDecay).grad_norm);
    step.update_expert_biases(result.expert_loads);
  }
  data->wait_for_parameters();
  for (const OwnedPart& part : data->parts()) hold(part, part.model, outcome.parameters);
  for (const OwnedPart& part : data->model_parts()) {  // what moves without a gradient: biases of experts
    if (!part.parameter->is_trainable()) hold(part, part.model, outcome.parameters);
  }
  return outcome;
}

std::string index_text(const at::Tensor& tensor, int64_t flat) {
  std::string text;
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    text = fmt::format("{}{}{}", flat % tensor.size(d), text.empty() ? "" : ", ", text);
    flat /= tensor.size(d);
  }
  return "[" + text + "]";
}

class Comparer {
 public:
  Comparer(const Layout& layout, double tolerance) : layout_(layout), tolerance_(tolerance) {}

  void numbers(const std::vector<double>& actual, const std::vector<double>& expected, size_t rank,
               const std::string& what) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const double relative = std::abs(actual.at(i) - expected[i]) / std::abs(expected[i]);
      note(relative, [&] {
        return fmt::format("rank {}, {} of step {}: {} instead of {}", rank, what, i + 1, actual[i], expected[i]);
      });
    }
  }

  void tensors(const std::vector<RankOutcome>& ranks, HoldingMap RankOutcome::*member, const RankOutcome& expected,
               const std::string& what) {
    for (const auto& [name, holding] : expected.*member) {
      const double scale = holding.value.abs().max().item<double>();
      at::Tensor is_held = at::zeros_like(holding.is_held);
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const HoldingMap& map = ranks[rank].*member;
        const auto found = map.find(name);
        if (found == map.end()) continue;
        is_held.logical_or_(found->second.is_held);
        one_tensor(found->second, holding, scale, rank, what + " of " + name);
      }
      if (is_held.all().item<bool>()) continue;
      note(kWrong, [&] {
        const int64_t first = is_held.reshape({-1}).logical_not().to(at::kInt).argmax().item<int64_t>();
        return fmt::format("{} of {}: no rank holds element {}", what, name, index_text(is_held, first));
      });
    }
  }

  Comparison result;

 private:
  static constexpr double kWrong = std::numeric_limits<double>::infinity();

  void one_tensor(const Holding& actual, const Holding& expected, double scale, size_t rank, const std::string& what) {
    if (actual.value.sizes() != expected.value.sizes()) {
      note(kWrong, [&] { return fmt::format("rank {}, {}: another shape", rank, what); });
      return;
    }
    const at::Tensor a = actual.value.to(at::kDouble), b = expected.value.to(at::kDouble);
    at::Tensor relative = (a - b).abs() / (scale > 0 ? scale : 1.0);
    relative = at::where(a.isfinite(), relative, at::full({}, kWrong, relative.options()));
    relative = at::where(actual.is_held, relative, at::zeros_like(relative));
    note(relative.max().item<double>(), [&] {
      const at::Tensor is_bad = relative.reshape({-1}) > tolerance_;
      const int64_t first = is_bad.to(at::kInt).argmax().item<int64_t>();
      return fmt::format("rank {}, {}, first bad index {} ({} of {} are bad): {} instead of {}", rank, what,
                         index_text(a, first), is_bad.sum().item<int64_t>(), a.numel(),
                         a.reshape({-1})[first].item<double>(), b.reshape({-1})[first].item<double>());
    });
  }

  void note(double relative, const std::function<std::string()>& describe) {
    if (!std::isfinite(relative)) relative = kWrong;
    result.worst = std::max(result.worst, relative);
    if (relative <= tolerance_ || !result.first_failure.empty()) return;
    result.first_failure = fmt::format("{}: {}; relative difference {:.3g}", layout_.text(), describe(), relative);
  }

  const Layout& layout_;
  double tolerance_;
};

}  // namespace

DataParallelKind zero1() {
  return {"zero1", [](const BuiltModel& model, const Groups& groups) -> std::unique_ptr<DataParallel> {
            const ShardedBufferOptions options{.gradients = {.bucket_elements = kBucketElements},
                                               .overlap_gather = true};
            return std::make_unique<ShardedGradBuffer>(model.parameters(), groups, options);
          }};
}

DataParallelKind fsdp() {
  return {"fsdp", [](const BuiltModel& model, const Groups& groups) -> std::unique_ptr<DataParallel> {
            return std::make_unique<Fsdp>(model.parameters(), model.chunks.at(0)->blocks(), groups, FsdpOptions{});
          }};
}

std::string Task::text() const {
  std::string text = fmt::format("batch {}×{}", global_batch, sequence);
  if (is_tied) text += ", tied";
  if (has_dropout) text += ", dropout";
  if (has_documents) text += ", documents";
  if (has_qkv_bias) text += ", qkv bias";
  if (num_kv_heads != 4) text += fmt::format(", {} kv heads", num_kv_heads);
  if (family != "llama") text += ", " + family;
  if (has_capacity) text += ", with a capacity";
  if (num_layers != 2) text += fmt::format(", {} layers", num_layers);
  return text;
}

int64_t Layout::num_microbatches() const { return div_exact(task.global_batch, micro_batch * dp); }

std::string Layout::text() const {
  std::string text = fmt::format("tp {}, dp {}", tp, dp);
  if (cp > 1) text += fmt::format(", cp {} {}", cp, fmt::join(cp_comm_type, " "));
  if (cp_ulysses > 1) text += fmt::format(" ({} x {})", cp_ulysses, cp / cp_ulysses);
  if (is_sequence_parallel) text += ", sequence parallel";
  if (pp > 1) {
    const PipelinePlan plan =
        make_pipeline_plan(pipeline, pp, task.num_layers, config_of(task).num_prediction_modules());
    text += fmt::format(", pp {} × {} ({})", pp, plan.num_chunks, plan.schedule(narrow<int>(num_microbatches())).name);
  }
  if (task.has_experts()) text += fmt::format(", ep {} etp {} {}", ep, etp == 0 ? tp : etp, dispatcher);
  if (overlaps_shared_expert) text += ", overlapped";
  if (dp_replicate > 1) text += fmt::format(" ({} copies)", dp_replicate);
  if (data_parallel.make) text += ", " + data_parallel.name;
  if (recompute.is_full()) {
    text += fmt::format(", recompute {} {}", *recompute.recompute_method, *recompute.recompute_num_layers);
    if (recompute.cpu_offloading_num_layers > 0) text += ", offloaded";
  } else if (recompute.is_selective()) {
    text += fmt::format(", recompute {}", fmt::join(recompute.recompute_modules, " "));
  }
  return fmt::format("{}, {} microbatch{} of {} ({})", text, num_microbatches(), num_microbatches() == 1 ? "" : "es",
                     micro_batch, task.text());
}

std::vector<RankOutcome> run_layout(const Layout& layout, const Precision& precision, int num_steps,
                                    const Mistake* mistake) {
  std::vector<RankOutcome> ranks(static_cast<size_t>(layout.world_size()));
  ThreadWorld(layout.world_size())
      .run(Mesh({.tp = layout.tp,
                 .cp = layout.cp,
                 .dp = layout.dp,
                 .pp = layout.pp,
                 .etp = layout.etp == 0 ? layout.tp : layout.etp,
                 .ep = layout.ep,
                 .dp_replicate = layout.dp_replicate,
                 .cp_ulysses = layout.cp_ulysses}),
           [&](Groups& groups) {
             ranks[static_cast<size_t>(groups.rank)] = run_rank(groups, layout, precision, num_steps, mistake);
           });
  return ranks;
}

const RankOutcome& single_rank_outcome(const Layout& layout, const Precision& precision, int num_steps) {
  static std::map<std::tuple<Task, int64_t, at::ScalarType, Kernels, int>, RankOutcome> known;
  const Task& task = layout.task;
  const int64_t micro_batch = task.has_experts() ? layout.micro_batch : task.global_batch;
  const auto key = std::make_tuple(task, micro_batch, precision.dtype, precision.kernels, num_steps);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const Layout alone{.micro_batch = micro_batch, .task = task};
  return known[key] = run_layout(alone, precision, num_steps)[0];
}

Comparison compare(const Layout& layout, const std::vector<RankOutcome>& ranks, const RankOutcome& expected,
                   double tolerance) {
  Comparer comparer(layout, tolerance);
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    comparer.numbers({ranks[rank].losses[0]}, {expected.losses[0]}, rank, "loss");
  comparer.tensors(ranks, &RankOutcome::gradients, expected, "gradient");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    comparer.numbers(ranks[rank].grad_norms, expected.grad_norms, rank, "gradient norm");
    comparer.numbers(ranks[rank].losses, expected.losses, rank, "loss");
  }
  comparer.tensors(ranks, &RankOutcome::parameters, expected, "parameter");
  return comparer.result;
}

void expect_as_one_rank_in_float64(const std::vector<Layout>& layouts) {
  constexpr int kSteps = 5;
  for (const Layout& layout : layouts) {
    const RankOutcome& expected = single_rank_outcome(layout, {}, kSteps);
    EXPECT_GT(*std::min_element(expected.grad_norms.begin(), expected.grad_norms.end()), kClipGrad);
    const Comparison found = compare(layout, run_layout(layout, {}, kSteps), expected, 1e-9);
    EXPECT_EQ(found.first_failure, "");
    ::testing::Test::RecordProperty(layout.text(), fmt::format("{:.2g}", found.worst));
  }
}

void expect_as_one_rank_in_float32(const std::vector<Layout>& layouts) {
  const Precision fused{at::kFloat, Kernels::kFused};
  for (const Layout& layout : layouts) {
    // Parameters after one step follow the gradient's sign, whatever its size: they are for float64.
    RankOutcome gradients_only = single_rank_outcome(layout, fused, 1);
    gradients_only.parameters.clear();
    const Comparison found = compare(layout, run_layout(layout, fused, 1), gradients_only, 1e-5);
    EXPECT_EQ(found.first_failure, "");
    ::testing::Test::RecordProperty(layout.text(), fmt::format("{:.2g}", found.worst));
  }
}

}  // namespace megalith::test
