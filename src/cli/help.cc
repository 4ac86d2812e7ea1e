#include "cli/help.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cli/acting_options.h"
#include "cli/print.h"
#include "config/help.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

// Up to this many options are printed on one page.
constexpr size_t kMostOnOnePage = 45;

// Options that most runs need, and those looked up most often.
const std::vector<HelpTopic> kCommonTopics = {
    {"Model", {"load_hf", "num_layers", "hidden_size", "num_attention_heads", "seq_length"}},
    {"Data", {"data_path", "sft_data_path", "mock_data", "tokenizer_model"}},
    {"Batch and length", {"micro_batch_size", "global_batch_size", "train_iters", "seed", "dry_run"}},
    {"Learning rate and optimizer",
     {"lr", "min_lr", "lr_decay_style", "lr_warmup_iters", "weight_decay", "clip_grad", "optimizer"}},
    {"Precision and memory", {"bf16", "fp8_format", "recompute_granularity", "lora.enabled"}},
    {"Several processors",
     {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
      "expert_model_parallel_size", "use_distributed_optimizer", "use_torch_fsdp2"}},
    {"Checkpoints", {"save", "save_interval", "load", "save_hf"}},
    {"Records and evaluation", {"output_dir", "eval_interval", "eval_iters"}},
    {"Machine", {"device", "num_threads"}},
};
// Shown first by `generate`.
const HelpTopic kSamplingTopic = {"Sampling", {"temperature", "top_k", "top_p"}};

// Questions in words that are neither an option nor a title.
struct Question {
  std::vector<std::string_view> words;
  std::string_view answer;
  HelpTopic topic;
};
const std::vector<Question> kQuestions = {
    {{"resume", "restart", "continue", "requeue"},
     "With output_dir the same command goes on from the newest checkpoint; load names another (docs/checkpoints.md).",
     {"Going on with a run",
      {"output_dir", "load", "auto_continue_train", "ckpt_step", "save", "save_interval", "finetune",
       "no_load_optim"}}},
    {{"out of memory", "oom", "memory"},
     "dry_run prints what a run takes, by owner. From cheap to dear (docs/recomputation.md, docs/parallelism.md):",
     {"Memory",
      {"dry_run", "micro_batch_size", "bf16", "use_distributed_optimizer", "use_torch_fsdp2", "recompute_granularity",
       "cpu_offloading_num_layers", "optimizer_cpu_offload", "tensor_model_parallel_size",
       "pipeline_model_parallel_size", "context_parallel_size", "lora.enabled", "lora.quantization",
       "max_new_tokens"}}},
    {{"nan", "diverge", "divergence", "loss spike", "spike"},
     "What a run does when numbers jump or are not finite (docs/faults.md).",
     {"Divergence",
      {"lr", "lr_warmup_iters", "clip_grad", "check_for_nan_in_loss_and_grad", "loss_spike_threshold",
       "loss_spike_action", "grad_norm_skip_threshold", "check_determinism", "fault_tolerance"}}},
    {{"fine tune", "fine tuning", "finetuning", "sft", "chat"},
     "Instructions and conversations, with all weights or with adapters (docs/finetuning.md, docs/adapters.md).",
     {"Fine-tuning",
      {"load_hf", "sft_data_path", "seq_length", "truncate", "enable_packed_sequences", "train_on_input", "loss",
       "lora.enabled", "lora.dim", "lr", "train_epochs"}}},
};

// The words after --help or -h, or in --help=WORD.
std::optional<std::string> asked_word(const std::vector<std::string>& arguments) {
  constexpr std::string_view kAttached = "--help=";
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(kAttached)) return arguments[i].substr(kAttached.size());
    if (arguments[i] != "--help" && arguments[i] != "-h") continue;
    std::vector<std::string> words;
    for (++i; i < arguments.size() && !arguments[i].empty() && arguments[i][0] != '-'; ++i) {
      words.push_back(arguments[i]);
    }
    return words.empty() ? std::nullopt : std::optional(join(words, " "));
  }
  return std::nullopt;
}

// The page for a question, with the command's options; nothing if it is none.
std::optional<std::string> answer_to(const std::string& asked, const OptionSet& options, const OptionFilter& acts) {
  if (options.find(asked) != nullptr) return std::nullopt;
  std::string plain = fmt::format(" {} ", lower_case(asked));
  for (char& c : plain) c = c == '_' || c == '-' ? ' ' : c;
  for (const Question& question : kQuestions) {
    const bool is_meant = std::any_of(question.words.begin(), question.words.end(), [&](std::string_view words) {
      return plain.find(fmt::format(" {} ", words)) != std::string::npos;
    });
    if (!is_meant) continue;
    const std::string rows = short_help_text(options, std::span(&question.topic, 1), acts);
    if (!rows.empty()) return fmt::format("{}\n\n{}", question.answer, rows);
  }
  return std::nullopt;
}

std::string first_rows(const CommandContext& context) {
  const bool is_json = context.command == "verify";
  return help_row("--config FILE", is_json ? "One of CVS's JSON files for Megatron."
                                           : "A preset, or a YAML file with options by name. What the command line "
                                             "says comes before it. Also --exp.") +
         help_row("--help [WORD]", "This page; or about a topic, an option, a part of names; or all of them.");
}

std::string short_page(const CommandContext& context, const OptionSet& options, const OptionFilter& acts) {
  std::string page = first_rows(context) + "\n";
  const std::string own = help_text(options, [](const Option& option) { return !is_run_option(option); });
  if (!own.empty()) page += own + "\n";
  std::vector<HelpTopic> topics = kCommonTopics;
  if (context.command == "generate") topics.insert(topics.begin(), kSamplingTopic);
  page += short_help_text(options, topics, acts) + "\n";
  const auto num_options = std::count_if(options.options().begin(), options.options().end(),
                                         [&](const auto& option) { return acts(*option); });
  std::vector<std::string> titles = group_titles(options, acts);
  for (std::string& title : titles) title = "'" + lower_case(title) + "'";
  page += fmt::format("These are the most used of {} options.\n", num_options) +
          help_row("--help all", "Every option, with type, range, default and other names.") +
          help_row("--help OPTION", "All about one, such as --help lr; or about all with a part of the name.") +
          help_row("--help TOPIC", fmt::format("A topic, by its title or a word of it: {}.", join(titles, ", ")));
  return page;
}

}  // namespace

int print_help(const CommandContext& context, std::string_view usage, const OptionSet& options) {
  const OptionFilter acts = [&](const Option& option) { return acts_in(context.command, option); };
  const std::optional<std::string> word = asked_word(context.arguments);
  const auto num_options = static_cast<size_t>(std::count_if(options.options().begin(), options.options().end(),
                                                             [&](const auto& option) { return acts(*option); }));
  const bool is_of_run =
      std::ranges::any_of(options.options(), [](const auto& option) { return is_run_option(*option); });
  const bool is_whole = word ? *word == "all" : !is_of_run || num_options <= kMostOnOnePage;
  if (word && !is_whole) {
    if (const std::optional<std::string> page = answer_to(*word, options, acts)) {
      print_out("{}", *page);
      return kExitSuccess;
    }
    if (const std::optional<std::string> page = help_on(options, *word, acts)) {
      print_out("{}", *page);
      return kExitSuccess;
    }
    if (const Option* option = options.find(*word)) {
      throw UserError(fmt::format("--{} is an option of train; {} has no use for it", option->name(), context.command),
                      fmt::format("'megalith train --help {}' explains it", option->name()));
    }
    const std::string nearest = options.nearest(*word);
    throw UserError(fmt::format("no option or topic is called '{}'.{}", *word,
                                nearest.empty() ? "" : fmt::format(" Did you mean '{}'?", nearest)),
                    fmt::format("'megalith {} --help' lists the topics", context.command));
  }
  print_out("{}\n\n{}", usage,
            is_whole ? first_rows(context) + "\n" + help_text(options, acts) : short_page(context, options, acts));
  return kExitSuccess;
}

}  // namespace megalith
