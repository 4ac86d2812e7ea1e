// See inspect_model.h.
#include "cli/inspect_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/pieces.h"
#include "cli/help.h"
#include "cli/print.h"
#include "cli/session.h"
#include "core/error.h"
#include "core/json.h"
#include "core/output_file.h"
#include "kinds/kinds.h"
#include "parallel/grad_buffer.h"
#include "tensor_files/safetensors_writer.h"
#include "train/setup.h"
#include "train/step.h"

namespace megalith {
namespace {

struct OutputOptions : GivenInput {
  std::string output_file;

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

std::optional<UserError> check_output_file(const OutputOptions& options, const Resolved& run) {
  if (options.output_file.empty()) return UserError("no output_file given", "name the safetensors file to write");
  return check_replaceable("output_file", options.output_file, {}, run.config.checkpoint.overwrite);
}

// This rank's gradients as whole canonical tensors, fp32 on the CPU.
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

// The mean loss of a pair's targets or of a file's pictures, and its gradients, without a data set.
int inspect_gradients_of_input(CommandContext& context, Session& session, const OutputOptions& options) {
  const Resolved& run = *session.resolved;
  throw_if_any(run.kind().check_given(options));
  const BuiltModel built = build_model(run, session.groups, session.device);
  load_weights(run, built, session.groups, context.log);
  GradBuffer gradients(built.parameters(), session.groups, {});
  PipelinedModel model(built.view(), session.groups, session.device);
  const ModelInput input = run.kind().make_input(options, built.config(), session.device);
  double loss = 0;
  gradients.begin_step();
  model.train(
      1, [&](int, std::span<const Unit>) { return input; }, [&](bool is_last) { gradients.begin_microbatch(is_last); },
      [&](const ModelOutput& output) {
        loss = (output.terms.front().sum / output.terms.front().weight).item<double>();
      });
  gradients.finish_step();
  write_safetensors(options.output_file, canonical_gradients(built.parameters()));
  print_out("{}\n", dump_json(Json{{input.terms[0].name, loss}}));
  return kExitSuccess;
}

}  // namespace

int inspect_logits(CommandContext& context) {
  OutputOptions options;
  auto resolved = resolve_config(all_kinds(), context.config_inputs(), 1, [&](OptionVisitor& v) { options.visit(v); },
                                 {.reads_batches = false});
  if (resolved->wants_help) {
    return print_help(context, "usage: megalith inspect logits --load_hf DIR --prompt_ids 1,2,3 --output_file FILE",
                      *resolved->options);
  }
  std::vector<UserError> errors;
  if (auto error = check_output_file(options, *resolved)) errors.push_back(std::move(*error));
  for (UserError& error : resolved->kind().check_given(options)) errors.push_back(std::move(error));
  throw_if_any(errors);
  Session session = start_session(context, std::move(resolved));
  const BuiltModel built = build_model(*session.resolved, session.groups, session.device);
  load_weights(*session.resolved, built, session.groups, context.log);
  at::NoGradGuard no_grad;
  const ModelInput input = session.resolved->kind().make_input(options, built.config(), session.device);
  PipelinedModel model(built.view(), session.groups, session.device);
  const ModelOutput output = model.forward(input, HeadOutput::kLogits);
  const at::Tensor logits = built.config().has_vocabulary() ? output.logits[0] : output.logits;
  std::map<std::string, at::Tensor> tensors{{"logits", logits.to(at::kCPU, at::kFloat)}};
  if (output.sentence_logits.defined()) {
    tensors["sentence_logits"] = output.sentence_logits[0].to(at::kCPU, at::kFloat);
  }
  write_safetensors(options.output_file, tensors);
  return kExitSuccess;
}

int inspect_gradients(CommandContext& context) {
  OutputOptions options;
  auto resolved = resolve_config(all_kinds(), context.config_inputs(), 1, [&](OptionVisitor& v) { options.visit(v); });
  if (resolved->wants_help) {
    return print_help(context, "usage: megalith inspect gradients --load_hf DIR --data_path PREFIX --output_file FILE",
                      *resolved->options);
  }
  if (auto error = check_output_file(options, *resolved)) throw std::move(*error);
  Session session = start_session(context, std::move(resolved));
  const Resolved& run = *session.resolved;
  if (run.kind().takes_given_targets()) {
    options.has_targets = true;
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
