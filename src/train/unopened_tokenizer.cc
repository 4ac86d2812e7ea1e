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
    {"NousResearch/Llama-2-70b-hf", 32000, 2},
    {"NousResearch/Meta-Llama-3-8B", 128256, 128001},
    {"meta-llama/Llama-3.1-8B", 128256, 128001},
    {"meta-llama/Llama-3.1-70B", 128256, 128001},
    {"meta-llama/Llama-3.1-405B", 128256, 128001},
    {"meta-llama/Llama-3.2-1B", 128256, 128001},
    {"meta-llama/Llama-3.2-3B", 128256, 128001},
    {"meta-llama/Meta-Llama-3.2-1B", 128256, 128001},  // Primus's spelling
    {"meta-llama/Meta-Llama-3.2-3B", 128256, 128001},
    {"meta-llama/Llama-3.3-70B-Instruct", 128256, 128001},
    {"meta-llama/Llama-4-Scout-17B-16E", 202048, 200001},
    {"meta-llama/Llama-4-Maverick-17B-128E", 202048, 200001},
    {"mistralai/Mixtral-8x7B-v0.1", 32000, 2},
    {"mistralai/Mixtral-8x22B-v0.1", 32000, 2},
    {"Qwen/Qwen2.5-0.5B", 151936, 151643},
    {"Qwen/Qwen2.5-1.5B", 151936, 151643},
    {"Qwen/Qwen2.5-3B", 151936, 151643},
    {"Qwen/Qwen2.5-7B", 152064, 151643},
    {"Qwen/Qwen2.5-14B", 152064, 151643},
    {"Qwen/Qwen2.5-32B", 152064, 151643},
    {"Qwen/Qwen2.5-72B", 152064, 151643},
    {"Qwen/Qwen3-0.6B", 151936, 151645},
    {"Qwen/Qwen3-1.7B", 151936, 151645},
    {"Qwen/Qwen3-4B", 151936, 151645},
    {"Qwen/Qwen3-8B", 151936, 151645},
    {"Qwen/Qwen3-14B", 151936, 151645},
    {"Qwen/Qwen3-32B", 151936, 151645},
    {"Qwen/Qwen3-30B-A3B", 151936, 151645},
    {"Qwen/Qwen3-235B-A22B", 151936, 151645},
    {"deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 151936, 151643},
    {"deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 152064, 151643},
    {"deepseek-ai/DeepSeek-V2-Lite", 102400, 100001},
    {"deepseek-ai/DeepSeek-V2", 102400, 100001},
    {"deepseek-ai/DeepSeek-V3", 129280, 1},
    {"LiquidAI/LFM2-8B-A1B", 65536, 7},
    {"moonshotai/Kimi-K2-Instruct", 163840, 163585},
    {"MiniMaxAI/MiniMax-M2.5", 200064, 200020},
    {"THUDM/glm-4-9b", 151552, 151329},
    {"openai/gpt-oss-20b", 201088, 200002},
    {"openai/gpt-oss-120b", 201088, 200002},
};

}  // namespace

const PublishedVocabulary* find_published_vocabulary(std::string_view repo) {
  for (const PublishedVocabulary& one : kPublished) {
    if (one.repo == repo) return &one;
  }
  return nullptr;
}

std::optional<UnopenedVocabulary> unopened_vocabulary(const Resolved& resolved) {
  const Config& config = resolved.config;
  const std::optional<std::string>& named = config.tokenizer.tokenizer_model;
  // A dry run without data says so, and needs no more than one with mock data.
  const bool reads_no_text = config.data.mock_data || (config.train.dry_run && !config.data.has_paths()) ||
                             resolved.derived.is_hub_out_of_reach;
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
