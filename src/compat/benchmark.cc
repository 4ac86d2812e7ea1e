// See benchmark.h.
#include "compat/benchmark.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/strings.h"

namespace megalith {
namespace {

using enum BenchmarkBackend;

constexpr BenchmarkModel kBenchmarkModels[] = {
    {"Llama-3.1-8B", "llama3.1_8B", 18, 16, 8192, "meta-llama/Llama-3.1-8B-Instruct"},
    {"Llama-3.1-70B", "llama3.1_70B", 4, 4, 8192, "meta-llama/Llama-3.1-70B-Instruct"},
    {"Llama-3.3-70B", "llama3.3_70B", 4, 4, 8192, "meta-llama/Llama-3.3-70B-Instruct"},
    {"Llama-3.1-405B", "llama3.1_405B", 0, 2, 8192, "meta-llama/Llama-3.1-405B-Instruct"},
    {"Llama-2-7B", "llama2_7B", 18, 32, 4096, "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-chat-hf"},
    {"Llama-2-13B", "llama2_13B", 0, 32, 4096, "meta-llama/Llama-2-13b-hf", "meta-llama/Llama-2-13b-chat-hf"},
    {"Llama-2-70B", "llama2_70B", 4, 8, 4096, "meta-llama/Llama-2-70b-hf", "meta-llama/Llama-2-70b-chat-hf"},
    {"Flux", "flux_dev", 10, 0, 1536, "black-forest-labs/FLUX.1-dev", "", true},
};

BenchmarkTag torchtitan_tag(std::string_view tag, std::string_view model) {
  return {tag, model, kTorchtitan, FrontEnd::kBenchmark};
}

// ROCm's Megatron-LM scripts, 50 steps each.
BenchmarkTag megatron_tag(std::string_view tag, std::string_view model, FrontEnd front_end,
                          std::vector<std::string_view> variables) {
  variables.emplace_back("TOTAL_ITERS=50");
  return {tag, model, kMegatron, front_end, std::move(variables)};
}

BenchmarkTag primus_tag(std::string_view tag, std::string_view model, std::string_view experiment,
                        std::vector<std::string_view> options = {}, BenchmarkBackend backend = kPrimus) {
  options.insert(options.end(), {"--train_iters", "50"});
  return {tag, model, backend, FrontEnd::kPrimus, {experiment}, std::move(options)};
}

std::vector<BenchmarkTag> torchtitan_tags() {
  return {
      torchtitan_tag("pyt_train_llama-3.1-8b", "Llama-3.1-8B"),
      torchtitan_tag("pyt_train_llama-3.1-70b", "Llama-3.1-70B"),
      torchtitan_tag("pyt_train_flux", "Flux"),
  };
}

std::vector<BenchmarkTag> megatron_tags() {
  using enum FrontEnd;
  return {
      megatron_tag("pyt_megatron_lm_train_llama-3.1-8b", "Llama-3.1-8B", kLlama3,
                   {"MODEL_SIZE=8", "TP=1", "MBS=2", "BS=128", "SEQ_LENGTH=8192"}),
      megatron_tag("pyt_megatron_lm_train_llama-3.1-70b", "Llama-3.1-70B", kLlama3,
                   {"MODEL_SIZE=70", "FSDP=1", "RECOMPUTE=1", "TP=1", "MBS=3", "BS=24", "SEQ_LENGTH=8192"}),
      megatron_tag("pyt_megatron_lm_train_llama-3.3-70b", "Llama-3.3-70B", kLlama3,
                   {"MODEL_SIZE=70", "FSDP=1", "RECOMPUTE=1", "TP=1", "MBS=2", "BS=16", "SEQ_LENGTH=8192"}),
      megatron_tag("pyt_megatron_lm_train_llama-2-7b", "Llama-2-7B", kLlama2,
                   {"MODEL_SIZE=7", "TP=1", "MBS=4", "BS=256", "SEQ_LENGTH=4096"}),
      megatron_tag("pyt_megatron_lm_train_llama-2-70b", "Llama-2-70B", kLlama2,
                   {"MODEL_SIZE=70", "FSDP=1", "RECOMPUTE=1", "TP=1", "MBS=7", "BS=56", "SEQ_LENGTH=4096"}),
      megatron_tag("pyt_megatron_lm_train_deepseek-v3-proxy", "DeepSeek-V3-proxy", kDeepseekV3,
                   {"MODEL_SIZE=671", "NUM_LAYERS=3", "MOE_LAYER_FREQ=1", "EP=8", "MBS=1", "BS=32", "SEQ_LEN=4096"}),
      megatron_tag("pyt_megatron_lm_train_deepseek-v2-lite-16b", "DeepSeek-V2-Lite-16B", kDeepseekV2,
                   {"MODEL_SIZE=16", "EP=8", "MBS=4", "BS=256", "SEQ_LEN=4096"}),
      megatron_tag("pyt_megatron_lm_train_mixtral-8x7b", "Mixtral-8x7B", kMixtral,
                   {"MODEL_SIZE=8x7", "TP=1", "EP=8", "MBS=1", "BS=16", "SEQ_LEN=4096"}),
      megatron_tag("pyt_megatron_lm_train_mixtral-8x22b-proxy", "Mixtral-8x22B-proxy", kMixtral,
                   {"MODEL_SIZE=8x22", "NUM_LAYERS=4", "TP=1", "EP=8", "MBS=1", "BS=16", "SEQ_LEN=8192"}),
      // ROCm's Megatron-LM has no script of Qwen here: the same settings in Primus's experiments.
      primus_tag("pyt_megatron_lm_train_qwen2.5-7b", "Qwen2.5-7B", "qwen2.5_7B",
                 {"--micro_batch_size", "10", "--global_batch_size", "640", "--seq_length", "2048"}, kMegatron),
      primus_tag("pyt_megatron_lm_train_qwen2.5-72b", "Qwen2.5-72B", "qwen2.5_72B",
                 {"--micro_batch_size", "3", "--global_batch_size", "24"}, kMegatron),
  };
}

// The commands of the guide to Primus, one a tag.
std::vector<BenchmarkTag> primus_tags() {
  return {
      primus_tag("primus_pyt_megatron_lm_train_llama-3.3-70b", "Llama-3.3-70B", "llama3.3_70B",
                 {"--micro_batch_size", "2", "--global_batch_size", "16"}),
      primus_tag("primus_pyt_megatron_lm_train_llama-3.1-8b", "Llama-3.1-8B", "llama3.1_8B"),
      primus_tag("primus_pyt_megatron_lm_train_llama-3.1-70b", "Llama-3.1-70B", "llama3.1_70B"),
      primus_tag("primus_pyt_megatron_lm_train_llama-2-7b", "Llama-2-7B", "llama2_7B"),
      primus_tag("primus_pyt_megatron_lm_train_llama-2-70b", "Llama-2-70B", "llama2_70B"),
      primus_tag("primus_pyt_megatron_lm_train_deepseek-v3-proxy", "DeepSeek-V3-proxy", "deepseek_v3",
                 {"--num_layers", "3", "--moe_layer_freq", "1"}),
      primus_tag("primus_pyt_megatron_lm_train_deepseek-v2-lite-16b", "DeepSeek-V2-Lite-16B", "deepseek_v2_lite",
                 {"--global_batch_size", "256"}),
      primus_tag("primus_pyt_megatron_lm_train_mixtral-8x7b", "Mixtral-8x7B", "mixtral_8x7B_v0.1"),
      primus_tag("primus_pyt_megatron_lm_train_mixtral-8x22b-proxy", "Mixtral-8x22B-proxy", "mixtral_8x22B_v0.1",
                 {"--num_layers", "4", "--pipeline_model_parallel_size", "1", "--micro_batch_size", "1",
                  "--global_batch_size", "16"}),
      primus_tag("primus_pyt_megatron_lm_train_qwen2.5-7b", "Qwen2.5-7B", "qwen2.5_7B"),
      primus_tag("primus_pyt_megatron_lm_train_qwen2.5-72b", "Qwen2.5-72B", "qwen2.5_72B"),
  };
}

}  // namespace

std::span<const BenchmarkModel> benchmark_models() { return kBenchmarkModels; }

std::span<const BenchmarkTag> benchmark_tags() {
  static const std::vector<BenchmarkTag> tags = [] {
    std::vector<BenchmarkTag> all = torchtitan_tags();
    for (auto part : {megatron_tags, primus_tags}) {
      for (BenchmarkTag& tag : part()) all.push_back(std::move(tag));
    }
    return all;
  }();
  return tags;
}

const BenchmarkModel* find_benchmark_model(std::string_view name) {
  const auto found = std::find_if(std::begin(kBenchmarkModels), std::end(kBenchmarkModels),
                                  [&](const BenchmarkModel& one) { return lower_case(one.name) == lower_case(name); });
  return found == std::end(kBenchmarkModels) ? nullptr : &*found;
}

const BenchmarkTag* find_benchmark_tag(std::string_view tag) {
  const auto tags = benchmark_tags();
  const auto found =
      std::find_if(tags.begin(), tags.end(), [&](const BenchmarkTag& one) { return one.tag == lower_case(tag); });
  return found == tags.end() ? nullptr : &*found;
}

std::string benchmark_model_names() {
  std::string names;
  for (const BenchmarkModel& one : kBenchmarkModels) names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
  return names;
}

std::string nearest_benchmark(const std::string& name) {
  std::vector<std::string> names;
  for (const BenchmarkModel& one : kBenchmarkModels) names.emplace_back(one.name);
  for (const BenchmarkTag& one : benchmark_tags()) names.emplace_back(one.tag);
  const std::string nearest = nearest_word(name, names);
  return nearest.empty() ? "" : fmt::format(". Did you mean {}?", nearest);
}

}  // namespace megalith
