#include "train/samples.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/strings.h"
#include "core/visible_text.h"
#include "train/config.h"
#include "train/setup.h"

namespace megalith {
namespace {

constexpr int64_t kDefaultNewTokens = 64;

std::string ids_text(const std::vector<int64_t>& ids) {
  std::string text;
  for (const int64_t id : ids) text += fmt::format("{}{}", text.empty() ? "" : " ", id);
  return text;
}

}  // namespace

void SampleOptions::visit(OptionVisitor& v) {
  v.group("Samples during training", {.changes_numbers = false});
  v.field("sample_interval", sample_interval,
          "After every so many iterations the model continues sample_prompt; the text goes to the log, to TensorBoard "
          "and to page_file. A model of pictures draws sample_prompt.")
      .unit("iterations")
      .at_least(1);
  v.field("sample_prompt", sample_prompt, "Text to continue, or what a picture shows.");
  v.field("sample_prompt_ids", sample_prompt_ids, "Token ids to continue, instead of a text.").read_by(kTextModels);
  v.field("sample_max_new_tokens", sample_max_new_tokens,
          "Longest continuation; default 64, or what max_position_embeddings leaves.")
      .unit("tokens")
      .at_least(1)
      .read_by(kTextModels);
  v.field("sample_steps", sample_steps,
          "Steps from noise to a picture. Default: 28 for a model with guidance_embed, else 4.")
      .within(1, 10000)
      .read_by(kPictureModels);
  v.field("sample_guidance", sample_guidance,
          "How closely a picture follows sample_prompt, of a model with guidance_embed. Default: 3.5.")
      .at_least(0)
      .read_by(kPictureModels);
  v.field("sample_folder", sample_folder,
          "Folder for the pictures, a PNG file each. Default: samples in the folder of save.")
      .read_by(kPictureModels);
}

std::vector<UserError> check_sample_options(const SampleOptions& options) {
  std::vector<UserError> errors;
  const bool has_ids = !options.sample_prompt_ids.empty();
  if (options.is_on() && !options.sample_prompt && !has_ids) {
    errors.emplace_back("sample_interval is given without a prompt",
                        "add --sample_prompt TEXT or --sample_prompt_ids 1,2,3");
  }
  if (options.sample_prompt && has_ids) {
    errors.emplace_back("sample_prompt and sample_prompt_ids are both given", "keep one of them");
  }
  if (options.is_on()) return errors;
  SampleOptions given = options, fresh;
  const OptionSet now(given), before(fresh);
  for (const auto& option : now.options()) {
    if (option->text() == before.find(option->name())->text()) continue;
    errors.emplace_back(fmt::format("{} is given without sample_interval", option->name()),
                        "say how often with --sample_interval");
  }
  return errors;
}

SamplePlan plan_samples(const Resolved& resolved) {
  const SampleOptions& options = resolved.config.samples;
  SamplePlan plan;
  plan.tokenizer = resolved.tokenizer.get();
  if (plan.tokenizer == nullptr) {
    plan.own = find_tokenizer(resolved);
    plan.tokenizer = plan.own.get();
  }
  if (options.sample_prompt) {
    if (plan.tokenizer == nullptr) {
      throw UserError("sample_prompt is a text, and there is no tokenizer to read it",
                      "name one with --tokenizer_model, or give token ids with --sample_prompt_ids");
    }
    const std::vector<int32_t> ids = plan.tokenizer->encode(*options.sample_prompt, /*add_special=*/true);
    plan.request.prompt_ids.assign(ids.begin(), ids.end());
    plan.prompt = visible_text(*options.sample_prompt);
  } else {
    plan.request.prompt_ids = options.sample_prompt_ids;
  }
  ModelConfig model = resolved.config.model;
  model.vocab_size = resolved.derived.vocab_size;
  const int64_t left = model.max_position_embeddings - std::ssize(plan.request.prompt_ids);
  plan.request.max_new_tokens = options.sample_max_new_tokens.value_or(std::clamp<int64_t>(left, 1, kDefaultNewTokens));
  check_generation(model, plan.request, "sample_max_new_tokens");
  if (!options.sample_prompt) {
    const std::vector<int32_t> ids(plan.request.prompt_ids.begin(), plan.request.prompt_ids.end());
    plan.prompt =
        plan.tokenizer != nullptr ? visible_text(plan.tokenizer->decode(ids)) : ids_text(plan.request.prompt_ids);
  }
  plan.request.stop_ids = find_stop_ids(resolved, plan.tokenizer);
  plan.request.sampling = resolved.config.sampling;
  if (resolved.derived.is_sequence_parallel) {
    plan.request.num_copies = resolved.config.parallel.tensor_model_parallel_size;
  }
  return plan;
}

GenerationRecord make_generation(const SamplePlan& plan, PipelinedModel& model, int64_t iteration, at::Device device) {
  const std::vector<int64_t> ids = generate_tokens(model, plan.request, device);
  GenerationRecord record{.iteration = iteration, .prompt = plan.prompt, .continuation = {}};
  if (plan.tokenizer == nullptr) {
    record.continuation = " " + ids_text(ids);
    return record;
  }
  StreamingDecoder decoder(*plan.tokenizer, /*skip_special=*/true);
  // The prompt goes first: some decoders drop the space before a text's first token.
  for (const int64_t id : plan.request.prompt_ids) decoder.push(narrow<int32_t>(id));
  std::string text;
  for (const int64_t id : ids) text += decoder.push(narrow<int32_t>(id));
  record.continuation = visible_text(text + decoder.finish());
  return record;
}

}  // namespace megalith
