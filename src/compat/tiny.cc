// See tiny.h.
#include "compat/tiny.h"

#include <algorithm>

#include "verify/toy_config.h"

namespace megalith {
namespace {

// What a toy of the doctor has, and a run keeps: real tokens must be in the vocabulary, and the rest is no size.
constexpr std::string_view kKept[] = {"vocab_size", "train_iters", "eval_iters", "fp32",     "kernels",
                                      "clip_grad",  "adam_eps",    "split",      "mock_data"};

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
    words.insert(words.end(), {"--pipeline_model_parallel_layout", "null", "--num_layers_per_virtual_pipeline_stage",
                               "null", "--num_virtual_stages_per_pipeline_rank", "null"});
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
  TinyRun tiny;
  for (const auto& option : toy.layout->options->options()) {
    const bool is_size = option->traits().in_toy == InToy::kMade &&
                         std::find(std::begin(kKept), std::end(kKept), option->name()) == std::end(kKept);
    if (!is_size || option->text() == resolved.options->find(option->name())->text()) continue;
    tiny.options.push_back(fmt::format("--{}={}", option->name(), option->text()));
  }
  const Config& config = toy.layout->config;
  tiny.note = fmt::format("TINY=1: {} layers of width {} with {} heads, {} samples of {} tokens; the vocabulary stays",
                          config.model.num_layers, config.model.hidden_size, config.model.num_attention_heads,
                          toy.layout->derived.global_batch_size, toy.layout->derived.seq_length);
  return tiny;
}

}  // namespace megalith
