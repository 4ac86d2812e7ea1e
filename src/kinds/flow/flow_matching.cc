#include "kinds/flow/flow_matching.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/philox.h"
#include "device/transfer.h"
#include "kinds/flow/flux_data.h"
#include "models/flux.h"
#include "models/flux_latents.h"

namespace megalith {
namespace {

constexpr int64_t kValidationSteps = 8;

// Validation rows have fixed shares of noise, all others draw them.
void give_timesteps(Batch& batch) {
  const at::Tensor step = batch.at(field::kSampleIndex).remainder(kValidationSteps).to(at::kFloat);
  batch.set(BatchField::of_rows(field::kFixedTimesteps, (step + 0.5) / static_cast<double>(kValidationSteps)));
}

// Normal numbers for each row (b, …), from its number and the key.
at::Tensor normals_of_rows(uint64_t key, const at::Tensor& samples, at::IntArrayRef sizes) {
  const at::Tensor numbers = at::empty(sizes, at::kFloat);
  const auto count = static_cast<uint64_t>(numbers.numel() / numbers.size(0));
  for (int64_t row = 0; row < numbers.size(0); ++row) {
    const auto sample = static_cast<uint64_t>(samples.const_data_ptr<int64_t>()[row]);
    fill_normal(key, sample * count, numbers[row].mutable_data_ptr<float>(), count);
  }
  return numbers;
}

bool has_unit(std::span<const Unit> units, UnitLetter letter) { return count_units(units, letter) > 0; }

}  // namespace

FlowMatching::FlowMatching(const TaskOptions& options, const TaskSetup& setup)
    : options_(options),
      shape_(setup.flux_shape),
      has_guidance_(setup.has_guidance),
      timestep_key_(make_philox_key(setup.seed, "flow timesteps")),
      noise_key_(make_philox_key(setup.seed, "flow noise")),
      posterior_key_(make_philox_key(setup.seed, "flow posterior")),
      text_key_(make_philox_key(setup.seed, "flow captions of t5")),
      pooled_key_(make_philox_key(setup.seed, "flow captions of clip")) {
  if (options.cfg_dropout_prob.size() > 2) {
    throw UserError(fmt::format("cfg_dropout_prob has {} numbers, and there are two encoders",
                                options.cfg_dropout_prob.size()),
                    "give one number, or one for T5 and one for CLIP");
  }
}

std::vector<UserError> FlowMatching::check(const ModelConfig& model, const DataOptions& data) const {
  std::vector<UserError> errors;
  if (!model.is_diffusion()) {
    errors.emplace_back("task flow_matching needs model_type diffusion_model, and this is a model of texts",
                        "take a preset such as flux_dev, or another task");
  }
  if (data.reset_position_ids || data.reset_attention_mask || data.eod_mask_loss) {
    errors.emplace_back("reset_position_ids, reset_attention_mask and eod_mask_loss are of texts, and task "
                        "flow_matching reads pictures",
                        "leave them out");
  }
  return errors;
}

DataSets FlowMatching::open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const {
  DataSets sets = open_flux_data(options, shape_, setup, log);
  for (const Split split : kSplits) {
    BatchSource* source = sets.of(split);
    if (source == nullptr) continue;
    if (split != Split::kTrain) source->then(give_timesteps);
    source->then([this](Batch& batch) { draw(batch); });
  }
  return sets;
}

double FlowMatching::drawn_timestep(uint64_t sample) const {
  const double u = uniform_at(timestep_key_, 0, sample);
  switch (options_.timestep_sampling_strategy) {
    case TimestepSampling::kUniform:
      return u;
    case TimestepSampling::kLogitNormal:
      return 1 / (1 + std::exp(-(options_.logit_mean + options_.logit_std * normal_at(timestep_key_, 0, sample))));
    case TimestepSampling::kMode: {
      const double cosine = std::cos(std::numbers::pi * u / 2);
      return 1 - u - options_.mode_scale * (cosine * cosine - 1 + u);
    }
    case TimestepSampling::kFixed:
      return options_.fixed_timestep;
  }
  throw InternalError("a strategy without a row here");
}

double FlowMatching::shifted(double t, int64_t tokens) const {
  if (!options_.flow_shift) return t;
  // A line through .5 at 256 tokens and 1.15 at 4096.
  const double slope = (1.15 - 0.5) / (4096 - 256);
  const double by_tokens = std::exp(0.5 + slope * static_cast<double>(tokens - 256));
  const double shift = *options_.flow_shift > 0 ? *options_.flow_shift : by_tokens;
  return shift * t / (1 + (shift - 1) * t);
}

at::Tensor FlowMatching::pictures_of(const Batch& rows) const {
  const at::Tensor latents = rows.at(field::kLatents).to(at::kFloat);
  if (!rows.has(field::kLatentLogVars)) return latents;
  const at::Tensor deviation = (rows.at(field::kLatentLogVars).to(at::kFloat).clamp(-30, 20) * 0.5).exp();
  const at::Tensor noise =
      normals_of_rows(posterior_key_, rows.at(field::kSampleIndex).contiguous(), latents.sizes());
  const double* scale_and_shift = rows.at(field::kLatentScale).const_data_ptr<double>();
  return (latents + deviation * noise - scale_and_shift[1]) * scale_and_shift[0];
}

void FlowMatching::drop_captions(Batch& rows) const {
  const std::vector<double>& shares = options_.cfg_dropout_prob;
  if (shares.empty()) return;
  const at::Tensor samples = rows.at(field::kSampleIndex).contiguous();
  const auto drop = [&](std::string_view name, std::string_view empty_name, double share, uint64_t key) {
    const at::Tensor given = rows.at(name), empty = rows.find(empty_name);
    at::Tensor all;
    for (int64_t row = 0; row < given.size(0); ++row) {
      if (uniform_at(key, 0, static_cast<uint64_t>(samples.const_data_ptr<int64_t>()[row])) >= share) continue;
      if (!all.defined()) all = given.clone();
      // Made-up rows have no encoding of an empty caption.
      if (empty.defined()) all[row].copy_(empty);
      else
        all[row].zero_();
    }
    if (all.defined()) rows.set(name, all);
  };
  drop(field::kTextStates, field::kEmptyTextStates, shares.front(), text_key_);
  drop(field::kPooledText, field::kEmptyPooledText, shares.back(), pooled_key_);
}

void FlowMatching::draw(Batch& rows) const {
  if (rows.has(field::kFlowTarget)) return;
  if (!rows.has(field::kLatents)) add_mock_pictures(rows, shape_);
  const at::Tensor samples = rows.at(field::kSampleIndex).contiguous();
  const at::Tensor pictures = pictures_of(rows);
  const int64_t b = pictures.size(0), height = pictures.size(2) / 2, width = pictures.size(3) / 2;
  const at::Tensor noise = normals_of_rows(noise_key_, samples, pictures.sizes());
  at::Tensor timesteps = rows.find(field::kFixedTimesteps);
  if (!timesteps.defined()) {
    timesteps = at::empty({b}, at::kFloat);
    for (int64_t row = 0; row < b; ++row) {
      const double t = drawn_timestep(static_cast<uint64_t>(samples.const_data_ptr<int64_t>()[row]));
      timesteps.mutable_data_ptr<float>()[row] = static_cast<float>(shifted(t, height * width));
    }
  }
  const at::Tensor t = timesteps.view({b, 1, 1, 1});
  rows.set(BatchField::of_rows(field::kNoisyImage, pack_latents((1 - t) * pictures + t * noise)));
  rows.set(BatchField::of_rows(field::kFlowTarget, pack_latents(noise - pictures)));
  rows.set(BatchField::of_rows(field::kTimesteps, timesteps));
  const at::Tensor sides = at::empty({2}, at::kLong);
  sides.mutable_data_ptr<int64_t>()[0] = height;
  sides.mutable_data_ptr<int64_t>()[1] = width;
  rows.set({.name = std::string(field::kImageSides), .tensor = sides, .row_dim = {}, .sequence_dim = {}});
  if (!rows.has(field::kFixedTimesteps)) drop_captions(rows);
}

std::vector<double> FlowMatching::count_weights(const Batch& part) const {
  return {static_cast<double>(part.num_rows())};
}

ModelInput FlowMatching::make_input(const Batch& part, at::Device device, std::span<const Unit> units) const {
  ModelInput input;
  const auto send = [&](const InputSpec& spec, std::string_view field) {
    input.more.set(spec.name, sent_to(part.at(field), device));
  };
  const bool is_first = has_unit(units, UnitLetter::kEmbedding), is_last = has_unit(units, UnitLetter::kHead);
  const int64_t b = part.num_rows();
  if (is_first) {
    send(input::kImage, field::kNoisyImage);
    send(input::kText, field::kTextStates);
    send(input::kPooledText, field::kPooledText);
    if (has_guidance_) {
      const at::Tensor guidance = at::full({b}, options_.guidance_scale, at::kFloat);
      input.more.set(input::kGuidance.name, sent_to(guidance, device));
    }
  }
  if (is_first || is_last) send(input::kTimesteps, field::kTimesteps);
  if (is_last) send(input::kTarget, field::kFlowTarget);
  const at::Tensor sides = part.at(field::kImageSides);
  const int64_t height = sides.const_data_ptr<int64_t>()[0], width = sides.const_data_ptr<int64_t>()[1];
  if (has_unit(units, UnitLetter::kLayer)) {
    input.more.set(input::kImagePositions.name, sent_to(image_positions(height, width), device));
  }
  input.context.b = b;
  input.context.s = height * width;
  input.context.encoder_s = part.at(field::kTextStates).size(1);
  const int64_t tokens = input.context.s + input.context.encoder_s;
  input.context.row_ids = sent_to(
      part.at(field::kSampleIndex).unsqueeze(1) * tokens + at::arange(tokens, at::kLong).unsqueeze(0), device);
  return input;
}

at::Tensor FlowMatching::evaluate(const Batch& /*part*/, const ModelOutput& output) const {
  MEGALITH_CHECK(!output.terms.empty(), "a model of pictures without a loss");
  const LossTerm& term = output.terms.front();
  return at::stack({term.sum.to(at::kDouble), term.weight.to(at::kDouble)}).unsqueeze(0);
}

}  // namespace megalith
