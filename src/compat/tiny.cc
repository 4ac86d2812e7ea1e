#include "compat/tiny.h"

#include <algorithm>
#include <map>

#include "config/record.h"
#include "verify/toy_config.h"

namespace megalith {
namespace {

// Set by the doctor's toy but kept here: real tokens must be in the vocabulary, and the rest are not sizes.
constexpr std::string_view kKept[] = {"vocab_size", "train_iters", "eval_iters", "fp32",     "kernels",
                                      "clip_grad",  "adam_eps",    "split",      "mock_data"};

// Tokens per row of sentences: the doctor's rows are so short that no word is masked and nothing is learned.
constexpr int64_t kSentenceTokens = 64;

// Sizes for a task on sentences that differ from the doctor's toy.
std::map<std::string, std::string> longer_rows(const Resolved& resolved) {
  std::map<std::string, std::string> values;
  const TaskOptions& task = resolved.config.task;
  if (task.task == TaskKind::kCausalLm || task.task == TaskKind::kMaskedLm) return values;
  if (task.task == TaskKind::kFlowMatching) return values;
  const int64_t length = std::min(resolved.derived.seq_length, kSentenceTokens);
  values["seq_length"] = fmt::to_string(length);
  values["max_position_embeddings"] = fmt::to_string(length);
  if (task.decoder_seq_length)
    values["decoder_seq_length"] = fmt::to_string(std::min(*task.decoder_seq_length, length));
  return values;
}

}  // namespace

std::vector<std::string> fitting_layout(const ParallelOptions& parallel, int world_size) {
  const int64_t model_ranks =
      parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size * parallel.context_parallel_size;
  std::vector<std::string> words;
  const auto set_one = [&](const std::string& name) { words.insert(words.end(), {"--" + name, "1"}); };
  const bool fits = world_size % model_ranks == 0;
  if (!fits) {
    for (const char* name : {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"}) {
      set_one(name);
    }
    words.insert(words.end(),
                 {"--pipeline_model_parallel_layout", "null", "--num_layers_per_virtual_pipeline_stage", "null",
                  "--num_virtual_stages_per_pipeline_rank", "null", "--pipeline_model_parallel_split_rank", "null",
                  "--encoder_pipeline_model_parallel_size", "0", "--encoder_tensor_model_parallel_size", "0"});
  }
  const int64_t stages = fits ? parallel.pipeline_model_parallel_size : 1;
  const int64_t tp = fits ? parallel.tensor_model_parallel_size : 1;
  const int64_t of_experts = parallel.expert_model_parallel_size * parallel.expert_tensor_parallel_size.value_or(tp);
  if (of_experts > 1 && (world_size / stages) % of_experts != 0) {
    set_one("expert_model_parallel_size");
    set_one("expert_tensor_parallel_size");
  }
  return words;
}

TinyRun make_tiny(const Resolved& resolved) {
  const ToyWorld world{.parallel = resolved.config.parallel, .world_size = resolved.derived.world_size, .cuts = {}};
  const ToyConfig toy = make_toy_config(resolved, world, ToyPrecision::kConfigured, /*num_steps=*/1);
  const std::map<std::string, std::string> longer = longer_rows(resolved);
  TinyRun tiny;
  for (const auto& [name, value] : longer) tiny.options.push_back(fmt::format("--{}={}", name, value));
  for (const auto& option : toy.layout->options->options()) {
    if (longer.contains(option->name())) continue;
    const bool is_size = option->traits().in_toy == InToy::kMade &&
                         std::find(std::begin(kKept), std::end(kKept), option->name()) == std::end(kKept);
    if (!is_size || option->text() == resolved.options->find(option->name())->text()) continue;
    // Quoted in YAML, such as a pipeline's layout, but not on the command line.
    tiny.options.push_back(fmt::format("--{}={}", option->name(), plain_text(option->text())));
  }
  // The toy's batch is in samples.
  if (resolved.config.train.gradient_accumulation_steps) {
    tiny.options.emplace_back("--gradient_accumulation_steps=null");
  }
  const Config& config = toy.layout->config;
  tiny.note = fmt::format("TINY=1: {} layers of width {} with {} heads, {} samples of {} tokens; the vocabulary stays",
                          config.model.num_all_layers(), config.model.hidden_size, config.model.num_attention_heads,
                          toy.layout->derived.global_batch_size,
                          longer.empty() ? fmt::to_string(toy.layout->derived.seq_length) : longer.at("seq_length"));
  return tiny;
}

}  // namespace megalith
