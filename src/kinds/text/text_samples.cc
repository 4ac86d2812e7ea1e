#include "kinds/text/text_samples.h"

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

// A continuation with the current weights, without dropout; the same on every rank.
GenerationRecord make_generation(const SamplePlan& plan, PipelinedModel& model, int64_t iteration, at::Device device) {
  const std::vector<int64_t> ids = generate_tokens(model, plan.request, plan.row_multiple, device);
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

}  // namespace

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
  plan.row_multiple = generation_row_multiple(resolved);
  return plan;
}

void TextSamples::show(PipelinedModel& model, int64_t iteration,
                       const std::vector<std::unique_ptr<MetricsSink>>& sinks) {
  const GenerationRecord record = make_generation(plan_, model, iteration, device_);
  for (const auto& sink : sinks) sink->on_generation(record);
}

}  // namespace megalith
