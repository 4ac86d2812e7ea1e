#include "kinds/encoder/text_vectors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "device/transfer.h"
#include "models/encoder_decoder.h"
#include "models/states_units.h"
#include "models/transformer.h"
#include "train/inference_memory.h"

namespace megalith {
namespace {

// Text indices, longest first, so that batches have similar lengths.
std::vector<int64_t> by_length(std::span<const std::vector<int32_t>> texts) {
  std::vector<int64_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](int64_t text) { return texts[static_cast<size_t>(text)].size(); });
  return order;
}

at::Tensor states_vectors(Model& model, const PaddedTexts& batch, Pooling pooling, at::Device device) {
  const ModelInput input = input_of_texts(batch, model.config().has_encoder(), device);
  // There is no head, so any output will do.
  const Bundle given = model.forward(input, {}, HeadOutput::kLogits).boundary;
  if (pooling == Pooling::kPooler) return given.at(kPooled).to(at::kFloat);
  const at::Tensor& states = given.at(model.config().has_encoder() ? kMemory : kStates);
  return pooled_states(states.view({batch.tokens.size(0), batch.tokens.size(1), -1}), batch.lengths, pooling);
}

}  // namespace

PaddedTexts padded_texts(std::span<const std::vector<int32_t>> texts, std::span<const int64_t> rows) {
  int64_t longest = 0;
  for (const int64_t row : rows) longest = std::max(longest, std::ssize(texts[static_cast<size_t>(row)]));
  const int64_t b = std::ssize(rows);
  PaddedTexts batch{.tokens = at::zeros({b, longest}, at::kLong), .lengths = at::empty({b}, at::kLong)};
  auto* token = batch.tokens.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < b; ++i, token += longest) {
    const std::vector<int32_t>& ids = texts[static_cast<size_t>(rows[static_cast<size_t>(i)])];
    std::ranges::copy(ids, token);
    batch.lengths.mutable_data_ptr<int64_t>()[i] = std::ssize(ids);
  }
  return batch;
}

ModelInput input_of_texts(const PaddedTexts& batch, bool has_encoder, at::Device device) {
  const int64_t b = batch.tokens.size(0), s = batch.tokens.size(1);
  const at::Tensor tokens = sent_to(batch.tokens, device);
  at::Tensor lengths;
  if (batch.lengths.min().item<int64_t>() < s) lengths = sent_to(batch.lengths, device);
  ModelInput input;
  input.context.b = b;
  input.context.s = s;
  input.context.is_training = false;
  if (has_encoder) {
    input.context.encoder_s = s;
    input.more.set(input::kEncoderTokens.name, tokens);
    if (lengths.defined()) input.more.set(input::kEncoderKeyLengths.name, lengths);
    return input;
  }
  input.tokens = tokens;
  input.context.position_ids = at::arange(s, at::TensorOptions(device).dtype(at::kLong)).unsqueeze(0).expand({b, s});
  input.context.mask.key_lengths = lengths;
  return input;
}

PipelinePlan plan_states(Resolved& resolved, bool has_pooler) {
  PipelinePlan plan;
  plan.units = states_units(resolved.config.model, has_pooler);
  plan.stages = {{0, std::ssize(plan.units)}};
  return std::exchange(resolved.derived.pipeline, std::move(plan));
}

StatesModel build_states_model(Resolved& resolved, const PipelinePlan& whole, const Groups& groups, at::Device device) {
  StatesModel model;
  PipelinePlan of_states = std::exchange(resolved.derived.pipeline, whole);
  model.whole = build_model(resolved, groups, at::kMeta);
  resolved.derived.pipeline = std::move(of_states);
  model.built = build_model(resolved, groups, device);
  return model;
}

MemoryMeasure estimate_vectors(int64_t rows, int64_t length) {
  return [=](const Resolved& resolved, int rank) {
    return estimate_inference(resolved, rank, {.rows = rows, .length = length, .head = HeadOutput::kLogits});
  };
}

at::Tensor pooled_states(const at::Tensor& states, const at::Tensor& lengths, Pooling pooling) {
  MEGALITH_CHECK(pooling != Pooling::kPooler, "a pooler reads what the model gives to it");
  if (pooling == Pooling::kCls) return states.select(1, 0).to(at::kFloat);
  const int64_t b = states.size(0), s = states.size(1);
  const at::Tensor lengths_here = lengths.to(states.device());
  if (pooling == Pooling::kLast) {
    const at::Tensor last = (lengths_here - 1).view({b, 1, 1}).expand({b, 1, states.size(2)});
    return states.gather(1, last).squeeze(1).to(at::kFloat);
  }
  // In fp32: bf16 would lose differences in a mean of hundreds of tokens.
  const at::Tensor counts = at::arange(s, lengths_here.options()).unsqueeze(0) < lengths_here.unsqueeze(1);
  const at::Tensor weights = counts.to(at::kFloat) / lengths_here.to(at::kFloat).unsqueeze(1);
  return at::bmm(weights.unsqueeze(1), states.to(at::kFloat)).squeeze(1);
}

at::Tensor text_vectors(const BuiltModel& built, std::span<const std::vector<int32_t>> texts,
                        const VectorSettings& settings, const Groups& groups, at::Device device,
                        const std::function<void(int64_t)>& on_done) {
  const at::NoGradGuard no_grad;
  Model& model = *built.chunks.at(0);
  const std::vector<int64_t> order = by_length(texts);
  const int64_t n = std::ssize(order), dp = groups.dp->size();
  const at::Tensor all = at::zeros({n, model.config().hidden_size}, at::kFloat);
  // A round is a batch per data-parallel rank. Ranks without one repeat another's: ranks may hold each other's experts.
  for (int64_t begin = 0; begin < n; begin += settings.rows * dp) {
    const int64_t own = begin + settings.rows * groups.dp->rank();
    const int64_t first = own < n ? own : begin;
    const auto rows = std::span(order).subspan(static_cast<size_t>(first),
                                               static_cast<size_t>(std::min(settings.rows, n - first)));
    at::Tensor vectors = states_vectors(model, padded_texts(texts, rows), settings.pooling, device).to(at::kCPU);
    if (settings.normalise) vectors = vectors / vectors.norm(2, 1, /*keepdim=*/true).clamp_min(1e-12);
    if (own < n) all.index_copy_(0, at::tensor(at::ArrayRef<int64_t>(rows.data(), rows.size()), at::kLong), vectors);
    if (on_done) on_done(std::min(settings.rows * dp, n - begin));
  }
  if (dp == 1) return all;
  const at::Tensor summed = all.to(groups.dp->device());
  groups.dp->all_reduce(summed, ReduceOp::kSum, "vectors of texts").wait();
  return summed.to(at::kCPU);
}

}  // namespace megalith
