// See front_end.h.
#include "compat/front_end.h"

#include <algorithm>

#include "core/error.h"

namespace megalith {
namespace {

using Words = std::vector<std::pair<std::string_view, std::string_view>>;

Words joined(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// What the scripts have in common. Fusions, workers and log switches of theirs change nothing here and are left out.
const Words kRocmWords = {
    {"optimizer", "adam"},         {"lr_decay_style", "cosine"},    {"weight_decay", "0.1"},
    {"clip_grad", "1.0"},          {"adam_beta1", "0.9"},           {"adam_beta2", "0.95"},
    {"dataloader_type", "cyclic"}, {"overlap_grad_reduce", "true"}, {"eval_iters", "-1"},
    {"log_interval", "1"},         {"log_throughput", "true"},      {"distributed_timeout_minutes", "120"},
    {"log_format", "megatron"},
};
const Words kLlamaWords = joined(kRocmWords, {{"lr", "1e-4"},
                                              {"min_lr", "1e-5"},
                                              {"lr_decay_iters", "320000"},
                                              {"init_method_std", "0.02"},
                                              {"no_save_optim", "true"}});
const Words kDeepseekWords = joined(kRocmWords, {{"lr", "1e-5"},
                                                 {"min_lr", "1e-6"},
                                                 {"lr_warmup_iters", "2"},
                                                 {"init_method_std", "0.008"},
                                                 {"moe_aux_loss_coeff", "0.01"},
                                                 {"moe_token_dispatcher_type", "alltoall"},
                                                 {"mtp_num_layers", "0"}});
const Words kMixtralWords = joined(kRocmWords, {{"lr", "1e-4"},
                                                {"min_lr", "1e-5"},
                                                {"lr_decay_iters", "320000"},
                                                {"init_method_std", "0.01"},
                                                {"moe_aux_loss_coeff", "0.01"},
                                                {"moe_token_dispatcher_type", "alltoall"},
                                                {"split", "9900,80,20"}});

std::vector<FrontEndRow> benchmarked_rows() {
  std::vector<FrontEndRow> rows = {
      {FrontEnd::kLlama2,
       "llama2",
       "Llama 2 as ROCm's Megatron-LM trains it",
       {"examples/llama/train_llama2.sh"},
       {{"70", "llama2_70B", 80}, {"7", "llama2_7B", 32}, {"13", "llama2_13B", 40}},
       joined(kLlamaWords, {{"split", "99990,8,2"}})},
      {FrontEnd::kLlama3,
       "llama3",
       "Llama 3, 3.1 and 3.3 as ROCm's Megatron-LM trains them",
       {"examples/llama/train_llama3.sh"},
       {{"70", "llama3.1_70B", 80}, {"8", "llama3.1_8B", 32}},
       kLlamaWords},
      {FrontEnd::kDeepseekV2,
       "deepseek_v2",
       "DeepSeek-V2 and V2-Lite as ROCm's Megatron-LM trains them",
       {"examples/deepseek_v2/train_deepseekv2.sh"},
       {{"16", "deepseek_v2_lite", 27, 1}, {"236", "deepseek_v2", 60, 1}},
       kDeepseekWords},
      {FrontEnd::kDeepseekV3,
       "deepseek_v3",
       "DeepSeek-V3 as ROCm's Megatron-LM trains it",
       {"examples/deepseek_v3/train_deepseekv3.sh", "examples/deepseek_v3/train_deepseek_v3_slurm.sh"},
       {{"16", "deepseek_v2_lite", 27, 1}, {"236", "deepseek_v2", 60, 1}, {"671", "deepseek_v3", 61, 3}},
       kDeepseekWords},
      {FrontEnd::kMixtral,
       "mixtral",
       "Mixtral as ROCm's Megatron-LM trains it",
       {"examples/mixtral/train_mixtral_moe.sh"},
       {{"8x7", "mixtral_8x7B_v0.1", 32}, {"8x22", "mixtral_8x22B_v0.1", 56}},
       kMixtralWords},
      {FrontEnd::kPrimus,
       "primus",
       "an experiment file of Primus",
       {"examples/run_pretrain.sh", "examples/run_local_pretrain.sh", "examples/run_slurm_pretrain.sh"},
       {},
       {{"log_format", "megatron"}}},
      {FrontEnd::kBenchmark,
       "benchmark",
       "a benchmark of AMD's PyTorch training image",
       {"scripts/pytorch-train/pytorch_benchmark_report.sh"},
       {},
       // The job that AMD's script starts: torchtitan's, for 50 steps.
       {{"optimizer", "adam"},
        {"lr", "3e-4"},
        {"adam_beta1", "0.9"},
        {"adam_beta2", "0.95"},
        {"adam_eps", "1e-8"},
        {"weight_decay", "0.1"},
        {"clip_grad", "1.0"},
        {"lr_decay_style", "linear"},
        {"lr_warmup_iters", "10"},
        {"train_iters", "50"},
        {"eval_iters", "0"},
        {"bf16", "true"},
        {"log_interval", "1"},
        {"log_throughput", "true"},
        {"log_format", "megatron"},
        {"log_style", "torchtitan"},
        {"distributed_timeout_minutes", "60"}}},
      {FrontEnd::kBenchmarkSetup,
       "benchmark_setup",
       "the downloads that AMD's PyTorch benchmarks need",
       {"scripts/pytorch-train/pytorch_benchmark_setup.sh"},
       {},
       {}},
  };
  return rows;
}

const std::vector<FrontEndRow>& table() {
  static const std::vector<FrontEndRow> rows = [] {
    std::vector<FrontEndRow> all = benchmarked_rows();
    for (FrontEndRow& row : stanford_front_ends()) all.push_back(std::move(row));
    return all;
  }();
  return rows;
}

}  // namespace

std::span<const FrontEndRow> front_ends() { return table(); }

const FrontEndRow& row_of(FrontEnd id) {
  for (const FrontEndRow& row : table()) {
    if (row.id == id) return row;
  }
  throw InternalError("a front end without a row");
}

const FrontEndRow* find_front_end(std::string_view name) {
  const auto found =
      std::find_if(table().begin(), table().end(), [&](const FrontEndRow& row) { return row.name == name; });
  return found == table().end() ? nullptr : &*found;
}

std::string names_of(FrontEnds several) {
  std::string names;
  for (const FrontEndRow& row : table()) {
    if (has(several, row.id)) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names;
}

std::string owners_of(FrontEnds several) {
  constexpr std::pair<FrontEnds, std::string_view> kFamilies[] = {{kStanfordScripts, "pretrain_…"},
                                                                  {kBertScripts, "pretrain_bert…"},
                                                                  {kGptScripts, "pretrain_gpt…"},
                                                                  {kT5Scripts, "pretrain_t5…"}};
  std::string families;
  for (const auto& [family, name] : kFamilies) {
    if ((several & family) != family) continue;
    several &= ~family;
    families += (families.empty() ? "" : ", ") + std::string(name);
  }
  const std::string names = names_of(several);
  return names.empty() || families.empty() ? names + families : names + ", " + families;
}

}  // namespace megalith
