#include "kinds/text/generation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "core/error.h"
#include "models/encoder_decoder.h"

namespace megalith {

void check_generation(const ModelConfig& config, const GenerationRequest& request, std::string_view length_option) {
  const int64_t prompt_length = static_cast<int64_t>(request.prompt_ids.size());
  if (config.is_diffusion()) {
    throw UserError("a model of pictures writes no text",
                    "leave sample_interval out; megalith generate --prompt TEXT --output FILE.png makes its pictures");
  }
  if (config.model_type == ModelType::kBert) {
    throw UserError("a BERT fills in masked tokens: it cannot write a text from left to right",
                    "generate with a model of model_type gpt");
  }
  if (config.model_type == ModelType::kBiencoder) {
    throw UserError("a biencoder gives vectors of texts: it cannot write a text",
                    "generate with a model of model_type gpt");
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

std::vector<int64_t> generate_tokens(PipelinedModel& model, const GenerationRequest& request, at::Device device,
                                     const std::function<bool(int64_t)>& on_token) {
  at::NoGradGuard no_grad;
  check_generation(model.config(), request, "max_new_tokens");
  const auto long_on_device = at::TensorOptions(device).dtype(at::kLong);
  KvCache cache;
  const bool has_encoder = model.config().has_encoder();
  const std::vector<int64_t> begin =
      has_encoder ? std::vector<int64_t>{model.config().bos_token_id.value_or(0)} : request.prompt_ids;
  cache.capacity = std::ssize(begin) + request.max_new_tokens;
  std::vector<int64_t> new_ids;
  const auto copies_of = [&](const std::vector<int64_t>& ids) {
    return at::tensor(at::ArrayRef<int64_t>(ids), at::kLong).to(device).unsqueeze(0).repeat({request.num_copies, 1});
  };
  at::Tensor tokens = copies_of(begin);
  while (static_cast<int64_t>(new_ids.size()) < request.max_new_tokens) {
    ModelInput input;
    const int64_t s = tokens.size(1);
    input.tokens = tokens;
    input.context.b = request.num_copies;
    input.context.s = s;
    input.context.position_ids =
        at::arange(cache.length, cache.length + s, long_on_device).expand({request.num_copies, s});
    input.context.is_training = false;
    input.context.cache = &cache;
    if (has_encoder) {
      input.context.encoder_s = std::ssize(request.prompt_ids);
      input.more.set(input::kEncoderTokens.name, copies_of(request.prompt_ids));
    }
    const ModelOutput output = model.forward(input, HeadOutput::kLastLogits);
    cache.length += s;
    const at::Tensor logits = output.logits.select(1, 0).narrow(0, 0, 1).to(at::kFloat);
    const int64_t id = sample_tokens(logits, request.sampling, static_cast<int64_t>(new_ids.size())).item<int64_t>();
    new_ids.push_back(id);
    if (on_token && !on_token(id)) break;
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end()) break;
    tokens = at::full({request.num_copies, 1}, id, long_on_device);
  }
  return new_ids;
}

}  // namespace megalith
