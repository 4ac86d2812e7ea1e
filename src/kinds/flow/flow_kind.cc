#include "kinds/flow/flow_kind.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/collect_errors.h"
#include "core/number_of.h"
#include "hub/names.h"
#include "kinds/flow/flow_input.h"
#include "kinds/flow/flux_data.h"
#include "kinds/flow/picture_data.h"
#include "kinds/flow/picture_samples.h"
#include "kinds/tasks.h"
#include "models/flux.h"
#include "models/flux_latents.h"
#include "train/activation_report.h"
#include "train/inputs.h"

namespace megalith {

// Token counts of a picture and its caption.
CostShape FlowKind::sample_shape(const Resolved& run) const {
  return {.b = 1, .s = run.derived.seq_length, .encoder_s = run.config.data.flux.text_length};
}

int64_t FlowKind::tokens_per_sample(const Resolved& run) const {
  const CostShape shape = sample_shape(run);
  return shape.s + shape.encoder_s;
}

void FlowKind::complete_shapes(ModelInput& input, const Resolved& run, int64_t /*encoder_s*/) const {
  input.context.encoder_s = run.config.data.flux.text_length;
  const int64_t tokens = input.context.encoder_s + input.context.s;
  input.context.row_ids = at::empty({input.context.b, tokens}, input.tokens.options());
  add_shapes(input, run.config.model, flux_inputs(run.config.model, /*has_target=*/true));
}

void FlowKind::check_sequence(const Config& config, Derived& d, std::vector<UserError>& errors) const {
  const FluxDataOptions& flux = config.data.flux;
  d.seq_length = flux.image_tokens();
  if (flux.image_size % 16 == 0) return;
  errors.emplace_back(fmt::format("image_size {} is no multiple of 16, the pixels of a token", flux.image_size),
                      fmt::format("set image_size to {} or {}", std::max<int64_t>(flux.image_size / 16, 1) * 16,
                                  (flux.image_size / 16 + 1) * 16));
}

void FlowKind::check_sequence_parallel(const Resolved& run, std::vector<UserError>& errors) const {
  const FluxDataOptions& flux = run.config.data.flux;
  const int64_t tp = run.config.parallel.tensor_model_parallel_size, tokens = run.derived.seq_length;
  if (tokens % tp == 0 && flux.text_length % tp == 0) return;
  errors.emplace_back(
      fmt::format("sequence_parallel splits the {} tokens of a picture (image_size {}) and the {} of its text "
                  "(text_length) over tensor_model_parallel_size {} ranks, and they do not divide",
                  tokens, flux.image_size, flux.text_length, tp),
      fmt::format("set text_length to a multiple of {0} and image_size to a multiple of {1}, or leave "
                  "sequence_parallel out",
                  tp, 16 * tp));
}

void FlowKind::check_layout(const Config& config, std::vector<UserError>& errors) const {
  if (config.parallel.context_parallel_size == 1) return;
  errors.emplace_back(
      fmt::format("context_parallel_size is {}, and text and picture of model_type diffusion_model are one sequence "
                  "that no ranks share",
                  config.parallel.context_parallel_size),
      "set context_parallel_size to 1; tensor, pipeline and data parallelism take model_type diffusion_model");
}

std::unique_ptr<Task> FlowKind::make_task(const Resolved& run) const {
  return megalith::make_task(run.config.task, make_task_setup(run));
}

void FlowKind::check_task(const Resolved& run, std::vector<UserError>& errors) const {
  if (run.config.task.task != TaskKind::kFlowMatching) {
    errors.emplace_back(fmt::format("task {} with model_type diffusion_model, which reads no tokens",
                                    run.options->of(run.config.task.task).text()),
                        "leave task out: such a model is trained by task flow_matching");
    return;
  }
  check_task_rules(run, errors);
  for (UserError& error : check_named_encoders(run)) errors.push_back(std::move(error));
}

std::vector<UserError> FlowKind::check_data(Resolved& run) const {
  const DataOptions& data = run.config.data;
  for (const std::vector<std::string>* paths : {&data.data_path, &data.train_data_path, &data.valid_data_path}) {
    for (const std::string& path : *paths) {
      if (auto refusal = refuse_url("data_path", path)) return {std::move(*refusal)};
    }
  }
  if (!data.has_paths() && run.config.train.dry_run) return no_data(run);
  if (has_unencoded_pictures(run)) return check_unencoded_pictures(run);
  return check_flux_data(data, flux_sample_shape(run.config.model, data.flux));
}

// Pictures are local folders.
void FlowKind::fetch_inputs(Resolved& run, const EnvironmentMap& environment, Logger& log,
                            std::vector<UserError>& errors) const {
  if (!needs_encoders(run)) return;
  collect(errors, [&] { run.derived.encoders.folder = find_encoders(run, environment, log).string(); });
}

void FlowKind::prepare_data(Resolved& run, Logger& log) const { prepare_pictures(run, log); }

int64_t FlowKind::count_sequences(const Resolved& /*run*/) const {
  throw InternalError("passes over pictures are not counted");  // check_run_length() refuses train_epochs
}

std::unique_ptr<RunSamples> FlowKind::make_samples(const Resolved& run, at::Device device, bool is_shown,
                                                   Logger& log) const {
  return std::make_unique<PictureSamples>(run, device, is_shown, log);
}

void FlowKind::describe(const Resolved& run, StepRecord& record) const {
  record.image_size = run.config.data.flux.image_size;
}

std::string FlowKind::sample_text(const Resolved& run) const {
  const CostShape sample = sample_shape(run);
  return fmt::format("{0} × {0} pixels ({1} + {2})", run.config.data.flux.image_size, sample.encoder_s,
                     number_of(sample.s, "token", "tokens"));
}

std::string FlowKind::shape_text(const Resolved& /*run*/, const ModelConfig& model) const {
  return fmt::format(
      "hidden {}, ffn {}, {} heads of {}; {} joint and {} single blocks; tokens of {}, texts of {} "
      "and {}{}",
      model.hidden_size, model.ffn_size(), model.num_attention_heads, model.head_dim(), model.num_joint_layers,
      model.num_single_layers, model.in_channels, model.context_dim, model.vec_in_dim,
      model.guidance_embed ? ", guidance" : "");
}

// Keeps blocks of both kinds, and axes of different widths.
void FlowKind::shrink_model(const ParallelOptions& ranks, const ModelConfig& asked, const std::vector<int64_t>& sources,
                            ModelConfig& toy) const {
  const int64_t tp = ranks.tensor_model_parallel_size;
  toy.num_joint_layers =
      std::ranges::count_if(sources, [&](int64_t source) { return source < asked.num_joint_layers; });
  toy.num_single_layers = std::ssize(sources) - toy.num_joint_layers;
  toy.num_attention_heads = tp * div_up(4, tp);
  toy.hidden_size = 8 * toy.num_attention_heads;
  toy.ffn_hidden_size.reset();
}

// The smallest picture, of at least three tokens a side, and the shortest text that the ranks can share.
void FlowKind::shrink_sample(const Config& /*asked*/, Config& toy) const {
  const int64_t ranks = toy.sequence_parallel ? toy.parallel.tensor_model_parallel_size : 1;
  int64_t side = 3, text_length = 5;
  while (side * side % ranks != 0) ++side;
  while (text_length % ranks != 0) ++text_length;
  toy.data.flux.image_size = 16 * side;
  toy.data.flux.text_length = text_length;
}

// A picture of two by two tokens and a text of three.
ModelInput FlowKind::some_input(const ModelConfig& config) const {
  const auto numbers = [](std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return at::arange(count, at::kFloat).mul(0.7).sin().view(shape);
  };
  ModelInput input;
  input.context.b = 1;
  input.context.s = 4;
  input.context.encoder_s = 3;
  input.context.is_training = false;
  for (const InputSpec& spec : flux_inputs(config, /*has_target=*/false)) {
    input.more.set(spec.name, numbers(input_shape(spec, config, input.context)));
  }
  input.more.set(input::kTimesteps.name, at::full({1}, 0.3, at::kFloat));
  if (config.guidance_embed) input.more.set(input::kGuidance.name, at::full({1}, 3.5, at::kFloat));
  input.more.set(input::kImagePositions.name, image_positions(2, 2));
  return input;
}

std::vector<UserError> FlowKind::check_given(const GivenInput& given) const {
  if (given.inputs_file) return {};
  return {UserError("no inputs_file given, and model_type is diffusion_model",
                    "name the safetensors file that holds what it reads")};
}

ModelInput FlowKind::make_input(const GivenInput& given, const ModelConfig& config, at::Device device) const {
  ModelInput input = read_flux_input(*given.inputs_file, config, given.has_targets, device);
  input.terms[0] = {"loss", at::scalar_tensor(1 / static_cast<double>(input.context.b), at::kDouble)};
  return input;
}

}  // namespace megalith
