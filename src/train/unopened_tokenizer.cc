#include "train/unopened_tokenizer.h"

#include <filesystem>

#include "hub/names.h"
#include "train/config.h"

namespace megalith {
namespace {

// Source: vocab_size and eos_token_id in each repository's config.json, as in configs/models/.
constexpr PublishedVocabulary kPublished[] = {
    {"meta-llama/Llama-2-7b-hf", 32000, 2},
    {"meta-llama/Llama-2-13b-hf", 32000, 2},
    {"meta-llama/Llama-2-70b-hf", 32000, 2},
    {"meta-llama/Meta-Llama-3-8B", 128256, 128001},
    {"meta-llama/Meta-Llama-3-70B", 128256, 128001},
    {"meta-llama/Llama-3.1-8B", 128256, 128001},
    {"meta-llama/Llama-3.1-70B", 128256, 128001},
    {"meta-llama/Llama-3.1-405B", 128256, 128001},
    {"meta-llama/Llama-3.2-1B", 128256, 128001},
    {"meta-llama/Llama-3.2-3B", 128256, 128001},
    {"meta-llama/Llama-3.3-70B-Instruct", 128256, 128001},
    {"mistralai/Mixtral-8x7B-v0.1", 32000, 2},
    {"mistralai/Mixtral-8x22B-v0.1", 32000, 2},
    {"Qwen/Qwen2.5-7B", 152064, 151643},
    {"Qwen/Qwen2.5-14B", 152064, 151643},
    {"Qwen/Qwen2.5-32B", 152064, 151643},
    {"Qwen/Qwen2.5-72B", 152064, 151643},
    {"deepseek-ai/DeepSeek-V2-Lite", 102400, 100001},
    {"deepseek-ai/DeepSeek-V2", 102400, 100001},
    {"deepseek-ai/DeepSeek-V3", 129280, 1},
};

}  // namespace

const PublishedVocabulary* find_published_vocabulary(std::string_view repo) {
  for (const PublishedVocabulary& one : kPublished) {
    if (one.repo == repo) return &one;
  }
  return nullptr;
}

std::optional<UnopenedVocabulary> unopened_vocabulary(const Config& config) {
  const std::optional<std::string>& named = config.tokenizer.tokenizer_model;
  // A dry run without data says so, and needs no more than one with mock data.
  const bool reads_no_text = config.data.mock_data || (config.train.dry_run && !config.data.has_paths());
  if (!named || !reads_no_text || config.samples.is_on()) return std::nullopt;
  std::error_code ignored;
  if (std::filesystem::exists(*named, ignored)) return std::nullopt;
  const std::optional<HubName> name = parse_hub_name(*named, HubRepoType::kModel);
  if (!name) return std::nullopt;
  const PublishedVocabulary* published = find_published_vocabulary(name->repo);
  const ModelConfig& model = config.model;
  if (model.vocab_size) {
    const int64_t last = *model.vocab_size - 1;
    const int64_t eod = !model.eos_token_ids.empty() ? model.eos_token_ids.front()
                        : published                  ? published->eod_id
                                                     : last;
    return UnopenedVocabulary{*model.vocab_size, std::min(eod, last), "the model's configuration"};
  }
  if (!published) return std::nullopt;
  return UnopenedVocabulary{published->vocab_size, published->eod_id, "the published model"};
}

}  // namespace megalith
