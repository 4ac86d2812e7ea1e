#include "compat/launch_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/help.h"
#include "core/json.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr size_t kHelpColumns = 100;

std::string precision_text(const Config& config, const Derived& derived) {
  if (!config.fp8.is_on()) return dtype_text(derived.dtype);
  if (config.fp8.fp4_format) return fmt::format("fp4 {}", *config.fp8.fp4_format);
  return fmt::format("fp8 {}", *config.fp8.fp8_format);
}

std::string sharding_text(const Derived& derived) {
  if (derived.data_parallel.use_torch_fsdp2) return "fsdp2";
  return derived.data_parallel.use_distributed_optimizer ? "distributed_optimizer" : "none";
}

OrderedJson recompute_json(const RecomputeOptions& recompute) {
  OrderedJson json = {{"granularity", nullptr}, {"method", nullptr}, {"num_layers", nullptr}};
  if (recompute.is_selective()) json["granularity"] = "selective";
  if (recompute.is_full()) {
    json["granularity"] = "full";
    if (recompute.recompute_method) json["method"] = *recompute.recompute_method;
    if (recompute.recompute_num_layers) json["num_layers"] = *recompute.recompute_num_layers;
  }
  return json;
}

OrderedJson memory_json(const MemoryEstimate& memory) {
  return {{"parameters", memory.parameters + memory.weight_copies},
          {"gradients", memory.gradients},
          {"optimizer", memory.masters + memory.optimizer},
          {"activations", memory.activations + memory.logits},
          {"communication", memory.communication},
          {"data", memory.data},
          {"total", memory.total()}};
}

OrderedJson fit_json(const DeviceFit& fit) {
  OrderedJson savings = OrderedJson::array();
  for (const MemorySaving& saving : fit.savings) {
    savings.push_back({{"words", saving.words}, {"bytes", saving.bytes}, {"cost", saving.cost}});
  }
  return {{"device", fit.gpu.name},
          {"memory_bytes", fit.gpu.memory_bytes},
          {"fits", fit.fits()},
          {"left_bytes", fit.left_bytes()},
          {"savings", std::move(savings)},
          {"notes", fit.notes}};
}

// The exports of one topic, which a banner shows.
struct BannerTopic {
  std::string_view title;
  std::vector<std::string_view> beginnings;
};

// Escapes bars, which would end the cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

std::string defaults_text(const ScriptVariable& row) {
  // Groups front ends with one default.
  std::vector<std::pair<std::string_view, FrontEnds>> values;
  for (const FrontEndRow& front_end : front_ends()) {
    const auto value = row.default_of(front_end.id);
    if (!value) continue;
    const auto same = std::find_if(values.begin(), values.end(), [&](const auto& one) { return one.first == *value; });
    if (same == values.end()) {
      values.emplace_back(*value, only(front_end.id));
    } else {
      same->second |= only(front_end.id);
    }
  }
  std::vector<std::string> parts;
  for (const auto& [value, several] : values) parts.push_back(fmt::format("{} {}", owners_of(several), value));
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string becomes_text(const ScriptVariable& row) {
  if (row.kind == VariableKind::kOption) return fmt::format("`--{}`", row.option);
  return std::string(name_of(row.kind));
}

}  // namespace

std::string dry_run_json(const LaunchPlan& plan, const Resolved& resolved, const DryRun& run,
                         const std::vector<std::pair<std::string, std::vector<std::string>>>& commands) {
  const Config& config = resolved.config;
  const Derived& derived = resolved.derived;
  const ParallelOptions& parallel = config.parallel;
  const bool is_of_pictures = !config.model.has_vocabulary();
  const int64_t tokens = derived.seq_length + (is_of_pictures ? config.data.flux.text_length : 0);
  OrderedJson exports = OrderedJson::object(), options = OrderedJson::object();
  for (const PlannedExport& one : plan.exports) {
    if (one.is_shown) exports[one.name] = one.value;
  }
  for (const auto& option : resolved.options->options()) {
    if (option->is_set() && !option->is_default()) options[option->name()] = option->text();
  }
  OrderedJson json = {
      {"world_size", derived.world_size},
      {"data_parallel_size", derived.data_parallel_size},
      {"tensor_model_parallel_size", parallel.tensor_model_parallel_size},
      {"pipeline_model_parallel_size", parallel.pipeline_model_parallel_size},
      {"context_parallel_size", parallel.context_parallel_size},
      {"expert_model_parallel_size", parallel.expert_model_parallel_size},
      {"num_layers", is_of_pictures ? config.model.num_all_layers() : config.model.num_layers},
      {"micro_batch_size", derived.micro_batch_size},
      {"global_batch_size", derived.global_batch_size},
      {"seq_length", tokens},
      {"num_microbatches", derived.num_microbatches},
      {"tokens_per_iteration", derived.global_batch_size * tokens},
      {"train_iters", derived.train_iters},
      {"parameters", run.numbers.parameters},
      {"prediction_parameters", run.numbers.prediction_parameters},
      {"precision", precision_text(config, derived)},
      {"sharding", sharding_text(derived)},
      {"recompute", recompute_json(config.recompute)},
      {"memory_bytes", memory_json(run.memory)},
      {"fit", run.fit ? fit_json(*run.fit) : OrderedJson(nullptr)},
      {"exports", std::move(exports)},
  };
  for (const auto& [name, command] : commands) json[name] = command;
  json["options"] = std::move(options);
  return dump_json_pretty(json);
}

std::string primus_banner(const LaunchPlan& plan, const std::string& host) {
  std::string text;
  const auto line = [&](const std::string& words) {
    text += fmt::format("[NODE-{}({})] [INFO] {}\n", plan.node_rank, host, words);
  };
  const auto title = [&](std::string_view words) { line(fmt::format("{0} {1} {0}", std::string(10, '='), words)); };
  title("Training cluster info");
  line(fmt::format("MASTER_ADDR: {}", plan.master_address));
  line(fmt::format("MASTER_PORT: {}", plan.master_port));
  line(fmt::format("NNODES: {}", plan.num_nodes));
  line(fmt::format("NODE_RANK: {}", plan.node_rank));
  line(fmt::format("GPUS_PER_NODE: {}", plan.ranks_per_node));
  title("Training info");
  line(fmt::format("EXP: {}", plan.config));
  line(fmt::format("TRAIN_LOG: {}", plan.train_log.value_or("")));
  const std::vector<BannerTopic> topics = {
      {"NCCL and Network Settings", {"NCCL_", "GLOO_", "RCCL_", "MSCCLPP_"}},
      {"AMD-specific GPU optimizations", {"HSA_", "HIP_", "GPU_MAX_HW_QUEUES"}},
      {"Performance tuning", {"CUDA_", "TORCH_NCCL_", "NVTE_", "PATCH_TE_"}},
      {"Training tuning info", {"PRIMUS_", "HF_HOME"}},
  };
  for (const BannerTopic& topic : topics) {
    title(topic.title);
    for (const PlannedExport& one : plan.exports) {
      for (const std::string_view beginning : topic.beginnings) {
        if (one.is_shown && one.name.starts_with(beginning)) line(fmt::format("{}: {}", one.name, one.value));
      }
    }
  }
  return text;
}

std::string front_end_help(FrontEnd front_end) {
  const FrontEndRow& row = row_of(front_end);
  std::string text = fmt::format("usage: megalith launch {} [KEY=VALUE ...]{}\n\n", row.name,
                                 has(kTrainingScripts, front_end) ? " [--option value ...]" : "");
  const std::string options = "; options are those of 'megalith train', and win over variables";
  const std::string about = fmt::format(
      "Starts {}, as {} {}. Variables come from .env, the environment and KEY=VALUE words, the later ones win{}. "
      "DRY_RUN=1 shows what would run.",
      row.title, fmt::join(row.scripts, ", "), row.scripts.size() == 1 ? "does" : "do",
      has(kTrainingScripts, front_end) ? options : "");
  for (const std::string& line : wrap(about, kHelpColumns)) text += line + "\n";
  text += "\n";
  for (const ScriptVariable* one : variables_of(front_end)) {
    if (one->kind == VariableKind::kExported) continue;
    const auto fallback = one->default_of(front_end);
    std::string meaning(one->help);
    if (!one->words.empty()) meaning += fmt::format(" One of {}.", fmt::join(one->words, ", "));
    if (one->kind == VariableKind::kNoEffect) meaning = fmt::format("No effect here: {}.", one->reason);
    if (one->kind == VariableKind::kRefused) meaning = fmt::format("Not supported: {}.", one->reason);
    text += help_row(fmt::format("{}", fmt::join(one->spellings, ", ")),
                     meaning + (fallback ? fmt::format(" Default: {}.", *fallback) : ""));
  }
  std::vector<std::string> exports = {"Exported unless set:"};
  for (const ScriptVariable* one : variables_of(front_end)) {
    const auto fallback = one->default_of(front_end);
    if (one->kind == VariableKind::kExported && fallback)
      exports.push_back(fmt::format("{}={}", one->name(), *fallback));
  }
  if (exports.size() == 1) return text;
  text += "\n";
  for (const std::string& line : wrap(join(exports, " "), kHelpColumns)) text += line + "\n";
  return text;
}

std::string scripts_page() {
  std::string page =
      "# Scripts of other tools\n\n"
      "The commands that other tools' pages print work here as they are printed. Each script is a shell around\n"
      "`megalith launch NAME`, which reads variables by one table. `DRY_RUN=1` in front of any of them shows what "
      "every\n"
      "variable became, the configuration, the layout, the memory of a rank, and the commands of Slurm, of the\n"
      "container and of torchrun, and starts nothing. `DRY_RUN=json` prints that as one JSON object. `TINY=1` shrinks\n"
      "the model until it trains on a processor. This page is printed by `megalith launch --markdown`.\n\n"
      "```sh\nDRY_RUN=1 MODEL_SIZE=8 TP=1 MBS=2 BS=16 bash examples/llama/train_llama3.sh\n"
      "DRY_RUN=json build/megalith launch mixtral MODEL_SIZE=8x7B TP_SIZE=1\n```\n\n"
      "From low to high: the defaults below, `.env` in the current folder, the environment, words `KEY=VALUE` after\n"
      "the script, options `--option value` after it. An empty variable counts as unset. Two spellings of one "
      "variable\n"
      "that disagree are an error.\n\n"
      "| name | script | what runs |\n| --- | --- | --- |\n";
  for (const FrontEndRow& row : front_ends()) {
    page += fmt::format("| `{}` | `{}` | {} |\n", row.name, fmt::join(row.scripts, "`, `"), row.title);
  }
  page +=
      "\nA variable of one of ROCm's scripts works in all of them. Those of Stanford's Megatron-LM are named\n"
      "`pretrain_…`; below, `pretrain_bert…` stands for all whose names begin so.\n\n## Flags of the benchmark "
      "scripts\n\n"
      "They come after the script, and take the next word. [Their page](benchmark_scripts.md) says more.\n\n"
      "| flag | default | meaning | from |\n| --- | --- | --- | --- |\n";
  for (const ScriptVariable& row : script_flags()) {
    page += fmt::format("| `{}` | {} | {} | {} |\n", fmt::join(row.spellings, "`, `"), defaults_text(row),
                        cell(row.help), owners_of(row.front_ends));
  }
  for (const bool is_exported : {false, true}) {
    page += is_exported
                ? "\n## Variables of the processes\n\nThey are exported with these values unless they are set.\n\n"
                  "| variable | default | what reads it |\n| --- | --- | --- |\n"
                : "\n## Variables of the scripts\n\n| variable | becomes | default | meaning | from |\n"
                  "| --- | --- | --- | --- | --- |\n";
    for (const ScriptVariable& row : script_variables()) {
      if ((row.kind == VariableKind::kExported) != is_exported) continue;
      if (is_exported) {
        page += fmt::format("| `{}` | {} | {} |\n", row.name(), defaults_text(row), cell(row.help));
      } else {
        page += fmt::format("| `{}` | {} | {} | {} | {} |\n", fmt::join(row.spellings, "`, `"), becomes_text(row),
                            defaults_text(row), cell(row.help), owners_of(row.front_ends));
      }
    }
  }
  return page;
}

}  // namespace megalith
