#include "kinds/text/generation.h"

#include <algorithm>

#include "core/error.h"
#include "kinds/text/text_batch.h"
#include "train/config.h"

namespace megalith {
namespace {

constexpr std::pair<ModelType, const char*> kWritesNothing[] = {
    {ModelType::kBert, "a BERT fills in masked tokens: it cannot write a text from left to right"},
    {ModelType::kBiencoder, "a biencoder gives vectors of texts: it cannot write a text"},
    {ModelType::kClassifier, "a classifier tells the class of a text: it cannot write one"},
};

}  // namespace

bool writes_text(const ModelConfig& config) {
  const auto is_its_type = [&](const auto& row) { return row.first == config.model_type; };
  return !config.is_diffusion() && config.is_causal() && std::ranges::none_of(kWritesNothing, is_its_type);
}

void check_generation(const ModelConfig& config, const GenerationRequest& request, std::string_view length_option) {
  const int64_t prompt_length = static_cast<int64_t>(request.prompt_ids.size());
  if (config.is_diffusion()) {
    throw UserError("a model of pictures writes no text",
                    "leave sample_interval out; megalith generate --prompt TEXT --output FILE.png makes its pictures");
  }
  for (const auto& [type, why] : kWritesNothing) {
    if (config.model_type == type) throw UserError(why, "generate with a model of model_type gpt");
  }
  if (!config.is_causal()) {
    throw UserError("a model with is_causal false attends to both sides: it cannot write a text from left to right",
                    "generate with a model that was trained with is_causal true");
  }
  if (prompt_length == 0) throw UserError("the prompt is empty", "give at least one token to start from");
  for (const int64_t id : request.prompt_ids) {
    if (id < 0 || id >= *config.vocab_size) {
      throw UserError(fmt::format("prompt id {} is outside the model's vocabulary of {}", id, *config.vocab_size),
                      "use the tokenizer that belongs to this model");
    }
  }
  // Relative positions have no maximum.
  if (config.position_embedding() == PositionEmbedding::kRelative) return;
  if (prompt_length + request.max_new_tokens > config.max_position_embeddings) {
    throw UserError(fmt::format("prompt ({}) and new tokens ({}) exceed max_position_embeddings {}", prompt_length,
                                request.max_new_tokens, config.max_position_embeddings),
                    fmt::format("lower {} to {}", length_option,
                                std::max<int64_t>(config.max_position_embeddings - prompt_length, 0)));
  }
}

std::span<const int64_t> text_before(const ModelConfig& config, const GenerationRequest& request) {
  return config.has_encoder() ? std::span<const int64_t>() : std::span<const int64_t>(request.prompt_ids);
}

int64_t generation_row_multiple(const Resolved& resolved) {
  return resolved.derived.is_sequence_parallel ? resolved.config.parallel.tensor_model_parallel_size : 1;
}

std::vector<int64_t> generate_tokens(PipelinedModel& model, const GenerationRequest& request, int64_t row_multiple,
                                     at::Device device, const std::function<bool(int64_t)>& on_token) {
  TextBatch batch(model, {.row_multiple = row_multiple}, device);
  batch.add(0, request);
  std::vector<int64_t> new_ids;
  while (!batch.is_empty()) {
    new_ids.push_back(batch.step().front().id);
    if (on_token && !on_token(new_ids.back())) break;
  }
  return new_ids;
}

}  // namespace megalith
