// Logits and gradients of a model; see inspect_model.h.
#include "cli/inspect_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/pieces.h"
#include "cli/help.h"
#include "cli/inspect_flux.h"
#include "cli/print.h"
#include "cli/session.h"
#include "core/error.h"
#include "core/json.h"
#include "core/output_file.h"
#include "models/encoder_decoder.h"
#include "models/transformer.h"
#include "parallel/grad_buffer.h"
#include "tensor_files/safetensors_writer.h"
#include "train/setup.h"
#include "train/step.h"

namespace megalith {
namespace {

struct OutputOptions {
  std::vector<int64_t> prompt_ids, target_ids, prompt_token_types;
  std::string output_file;
  std::optional<std::string> inputs_file;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("output_file", output_file, "The safetensors file to write.").alias("output");
    v.field("prompt_ids", prompt_ids,
            "Token ids of the prompt (logits); with model_type t5 what the encoder reads, also for gradients.");
    v.field("prompt_token_types", prompt_token_types,
            "The type of each of them, with a model that has types of tokens (logits). Default: 0.")
        .at_least(0);
    v.field("target_ids", target_ids,
            "With model_type t5: token ids that the decoder is to write after prompt_ids. It reads those in front of "
            "each.");
    v.field("inputs_file", inputs_file,
            "With model_type diffusion_model: a safetensors file with what the model reads: image (b, n, in_channels), "
            "text (b, l, context_dim), pooled (b, vec_in_dim), timesteps (b), image_positions (n, 3), with "
            "guidance_embed guidance (b), and for gradients target (b, n, in_channels).");
  }
};

// The input of an encoder and decoder, on the device: the decoder gets its first token and the targets but the last.
ModelInput pair_input(const OutputOptions& options, const ModelConfig& config, at::Device device) {
  const auto row = [&](const std::vector<int64_t>& ids) {
    return at::tensor(at::ArrayRef<int64_t>(ids), at::kLong).unsqueeze(0).to(device);
  };
  std::vector<int64_t> given = {config.bos_token_id.value_or(0)};
  given.insert(given.end(), options.target_ids.begin(), options.target_ids.end() - 1);
  ModelInput input;
  input.tokens = row(given);
  input.labels = row(options.target_ids);
  input.loss_weights = at::ones(input.labels.sizes(), at::TensorOptions(device).dtype(at::kFloat));
  input.context.b = 1;
  input.context.s = std::ssize(given);
  input.context.encoder_s = std::ssize(options.prompt_ids);
  input.context.is_training = false;
  input.more.set(input::kEncoderTokens.name, row(options.prompt_ids));
  return input;
}

void require_pair(const OutputOptions& options) {
  if (!options.prompt_ids.empty() && !options.target_ids.empty()) return;
  throw UserError(fmt::format("a model of model_type t5 needs prompt_ids and target_ids, and {} is not given",
                              options.prompt_ids.empty() ? "prompt_ids" : "target_ids"),
                  "give what the encoder reads and what the decoder is to write: --prompt_ids 1,2,3 --target_ids 4,5");
}

std::optional<UserError> check_output_file(const OutputOptions& options, const Resolved& run) {
  if (options.output_file.empty()) return UserError("no output_file given", "name the safetensors file to write");
  return check_replaceable("output_file", options.output_file, {}, run.config.checkpoint.overwrite);
}

// Whole canonical tensors of this rank's gradients, in fp32 on the CPU.
std::map<std::string, at::Tensor> canonical_gradients(const std::vector<Parameter*>& parameters) {
  std::map<std::string, at::Tensor> result;
  for (const Parameter* param : parameters) {
    if (!param->is_trainable()) continue;
    for (const PieceView& view : piece_views(param->placement(), param->grad())) {
      at::Tensor& whole = result[view.piece.name];
      if (!whole.defined()) whole = at::zeros(view.piece.shape, at::kFloat);
      slice_box(whole, view.piece.canonical, std::vector<int64_t>(view.piece.shape.size(), 0))
          .copy_(view.tensor.to(at::kCPU));
    }
  }
  return result;
}

void write_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, safetensors_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, make_safetensors_layout(std::move(entries)));
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor bytes = tensor.contiguous();
    writer.write(name, 0, {static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  writer.finish();
}

UserError no_inputs_file() {
  return UserError("no inputs_file given, and model_type is diffusion_model",
                   "name the safetensors file that holds what it reads");
}

// The mean loss of a pair's targets or of a file's pictures, and its gradients, without a data set.
int inspect_gradients_of_input(CommandContext& context, Session& session, const OutputOptions& options) {
  const bool is_diffusion = session.resolved->config.model.is_diffusion();
  if (!is_diffusion) require_pair(options);
  if (is_diffusion && !options.inputs_file) throw no_inputs_file();
  const Resolved& run = *session.resolved;
  const BuiltModel built = build_model(run, session.groups, session.device);
  load_weights(run, built, session.groups, context.log);
  GradBuffer gradients(built.parameters(), session.groups, {});
  PipelinedModel model(built.view(), session.groups, session.device);
  ModelInput input = is_diffusion
                         ? read_flux_input(*options.inputs_file, built.config(), /*has_target=*/true, session.device)
                         : pair_input(options, built.config(), session.device);
  const int64_t weight = is_diffusion ? input.context.b : std::ssize(options.target_ids);
  const char* name = is_diffusion ? "loss" : "lm loss";
  input.terms[0] = {name, at::scalar_tensor(1 / static_cast<double>(weight), at::kDouble)};
  double loss = 0;
  gradients.begin_step();
  model.train(
      1, [&](int, std::span<const Unit>) { return input; }, [&](bool is_last) { gradients.begin_microbatch(is_last); },
      [&](const ModelOutput& output) {
        loss = (output.terms.front().sum / output.terms.front().weight).item<double>();
      });
  gradients.finish_step();
  write_safetensors(options.output_file, canonical_gradients(built.parameters()));
  print_out("{}\n", dump_json(Json{{name, loss}}));
  return kExitSuccess;
}

}  // namespace

int inspect_logits(CommandContext& context) {
  OutputOptions options;
  auto resolved =
      resolve_config(context.config_inputs(), 1, [&](OptionVisitor& v) { options.visit(v); }, {.reads_batches = false});
  if (resolved->wants_help) {
    return print_help(context, "usage: megalith inspect logits --load_hf DIR --prompt_ids 1,2,3 --output_file FILE",
                      *resolved->options);
  }
  std::vector<UserError> errors;
  if (auto error = check_output_file(options, *resolved)) errors.push_back(std::move(*error));
  const bool is_diffusion = resolved->config.model.is_diffusion();
  if (is_diffusion && !options.inputs_file) errors.push_back(no_inputs_file());
  if (!is_diffusion && options.prompt_ids.empty())
    errors.emplace_back("no prompt given", "give token ids: --prompt_ids 1,2,3");
  if (!options.prompt_token_types.empty() && options.prompt_token_types.size() != options.prompt_ids.size()) {
    errors.emplace_back(fmt::format("prompt_token_types has {} numbers, and prompt_ids {}",
                                    options.prompt_token_types.size(), options.prompt_ids.size()),
                        "give one type for each token");
  }
  throw_if_any(errors);
  Session session = start_session(context, std::move(resolved));
  const BuiltModel built = build_model(*session.resolved, session.groups, session.device);
  if (!options.prompt_token_types.empty() && built.config().token_types() == 0) {
    throw UserError("prompt_token_types is given, and the model has no types of tokens", "leave it away");
  }
  load_weights(*session.resolved, built, session.groups, context.log);
  at::NoGradGuard no_grad;
  ModelInput input;
  if (is_diffusion) {
    input = read_flux_input(*options.inputs_file, built.config(), /*has_target=*/false, session.device);
  } else if (built.config().has_encoder()) {
    require_pair(options);
    input = pair_input(options, built.config(), session.device);
  } else {
    input.tokens = at::tensor(at::ArrayRef<int64_t>(options.prompt_ids), at::kLong).unsqueeze(0).to(session.device);
    if (!options.prompt_token_types.empty()) {
      const at::Tensor types = at::tensor(at::ArrayRef<int64_t>(options.prompt_token_types), at::kLong);
      input.more.set(input::kTokenTypes.name, types.unsqueeze(0).to(session.device));
    }
    input.context.b = 1;
    input.context.s = input.tokens.size(1);
    input.context.position_ids =
        at::arange(input.context.s, at::TensorOptions(session.device).dtype(at::kLong)).unsqueeze(0);
    input.context.is_training = false;
  }
  PipelinedModel model(built.view(), session.groups, session.device);
  const ModelOutput output = model.forward(input, HeadOutput::kLogits);
  const at::Tensor logits = is_diffusion ? output.logits : output.logits[0];
  std::map<std::string, at::Tensor> tensors{{"logits", logits.to(at::kCPU, at::kFloat)}};
  if (output.sentence_logits.defined()) {
    tensors["sentence_logits"] = output.sentence_logits[0].to(at::kCPU, at::kFloat);
  }
  write_safetensors(options.output_file, tensors);
  return kExitSuccess;
}

int inspect_gradients(CommandContext& context) {
  OutputOptions options;
  auto resolved = resolve_config(context.config_inputs(), 1, [&](OptionVisitor& v) { options.visit(v); });
  if (resolved->wants_help) {
    return print_help(context, "usage: megalith inspect gradients --load_hf DIR --data_path PREFIX --output_file FILE",
                      *resolved->options);
  }
  if (auto error = check_output_file(options, *resolved)) throw std::move(*error);
  Session session = start_session(context, std::move(resolved));
  const Resolved& run = *session.resolved;
  if (run.config.model.has_encoder() || run.config.model.is_diffusion()) {
    return inspect_gradients_of_input(context, session, options);
  }
  const Derived& d = run.derived;
  DataSetup setup = make_data_setup(run);
  setup.num_samples = {d.global_batch_size, 0, 0};
  const std::unique_ptr<Task> task = make_task(run);
  const DataSets data = task->open_data(run.derived.data, setup, context.log);
  if (data.train == nullptr) throw UserError("the training split is empty", "give it a weight in split");
  const BuiltModel built = build_model(run, session.groups, session.device);
  load_weights(run, built, session.groups, context.log);
  GradBuffer gradients(built.parameters(), session.groups, {});
  Optimizer optimizer(gradients, session.groups, run.config.optimizer, run.config.runtime.kernels);
  PipelinedModel model(built.view(), session.groups, session.device);
  TrainStep step(model, *task, gradients, optimizer, session.groups, session.device);
  std::vector<Batch> batches;
  for (int64_t m = 0; m < d.num_microbatches; ++m) {
    batches.push_back(
        data.train->read({.consumed_samples = m * d.micro_batch_size, .micro_batch_size = d.micro_batch_size}));
  }
  const StepResult result = step.compute_gradients(batches);
  write_safetensors(options.output_file, canonical_gradients(built.parameters()));
  Json losses = Json::object();
  for (const NamedLoss& loss : result.losses) losses[loss.name] = loss.value;
  print_out("{}\n", dump_json(losses));
  return kExitSuccess;
}

CommandOptions inspect_logits_options() { return options_of<OutputOptions, Config>("inspect logits"); }
CommandOptions inspect_gradients_options() { return options_of<OutputOptions, Config>("inspect gradients"); }

}  // namespace megalith
