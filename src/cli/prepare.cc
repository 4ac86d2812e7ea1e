// megalith prepare: converts text into token files; merges and checks data sets.
#include "data/prepare.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/prepare_flux.h"
#include "cli/prepare_sft.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "data/dataset_tools.h"
#include "data/object_data.h"
#include "data/prepared_outputs.h"
#include "hub/hub.h"
#include "hub/texts.h"
#include "storage/s3_settings.h"

namespace megalith {
namespace {

struct MergeOptions {
  std::vector<std::string> data_path;
  std::string output_prefix;
  bool overwrite = false, allow_other_tokenizer = false;

  void visit(OptionVisitor& v) {
    v.group("Merging");
    v.field("data_path", data_path, "Data sets in their order, by the prefix of .bin and .idx.")
        .alias("input_prefixes");
    v.field("output_prefix", output_prefix, "The data set to write.");
    v.field("overwrite", overwrite, "Replace a data set that is there.");
    v.field("allow_other_tokenizer", allow_other_tokenizer,
            "Join data sets that 'prepare' made with different tokenizers: their ids are taken as they are.");
  }
};

// `prepare merge --input_prefixes A B … --output_prefix C`
int prepare_merge(CommandContext& context) {
  MergeOptions options;
  OptionSet set(options);
  const Resolution resolution = resolve(set, context.config_inputs());
  if (resolution.wants_help) {
    return print_help(context, "usage: megalith prepare merge --data_path PREFIX ... --output_prefix PREFIX", set);
  }
  std::vector<UserError> errors;
  if (options.data_path.empty()) errors.emplace_back("no data set to merge", "name them with --data_path");
  if (options.output_prefix.empty()) errors.emplace_back("no output_prefix given", "name the data set to write");
  for (const char* ending : {".bin", ".idx"}) {
    if (options.output_prefix.empty()) break;
    auto taken = check_replaceable("output_prefix", data_prefix(options.output_prefix) + ending, {}, options.overwrite);
    if (!taken) continue;
    errors.push_back(std::move(*taken));
    break;
  }
  if (auto mixed = find_mixed_tokenizers(options.data_path); mixed && !options.allow_other_tokenizer) {
    errors.push_back(std::move(*mixed));
  }
  throw_if_any(errors);
  const MergeReport report = merge_data_sets(options.data_path, options.output_prefix, context.log);
  print_out("{}.bin: {} tokens in {} documents from {} data sets\n", data_prefix(options.output_prefix), report.tokens,
            report.documents, options.data_path.size());
  return kExitSuccess;
}

struct CheckOptions {
  std::vector<std::string> data_path;
  TokenizerOptions tokenizer;

  void visit(OptionVisitor& v) {
    v.group("Checking");
    v.field("data_path", data_path, "Prefixes of .bin and .idx files.");
    tokenizer.visit_standalone(v);
  }
};

// `prepare check PREFIX …`: checks that every file is whole and every id in the vocabulary.
int prepare_check(CommandContext& context) {
  CheckOptions options;
  OptionSet set(options);
  const auto words =
      context.read_words(set, "usage: megalith prepare check PREFIX ... [--vocab_size N | --tokenizer_model DIR]");
  if (!words) return kExitSuccess;
  std::vector<std::string> prefixes = *words;
  prefixes.insert(prefixes.end(), options.data_path.begin(), options.data_path.end());
  if (prefixes.empty()) throw UserError("no data set given", "name the prefix of its .bin and .idx files");
  std::optional<int64_t> vocab_size = options.tokenizer.vocab_size;
  if (!vocab_size && options.tokenizer.is_named()) vocab_size = make_tokenizer(options.tokenizer)->vocab_size();
  bool is_sound = true;
  for (const std::string& prefix : prefixes) {
    const CheckReport report = check_data_set(prefix, vocab_size, context.log);
    if (report.faults.empty()) {
      print_out("{}: sound: {} documents, {} sequences, {} tokens, ids {} to {}\n", data_prefix(prefix),
                report.documents, report.sequences, report.tokens, report.smallest_id, report.largest_id);
      if (report.empty_documents > 0) print_out("  {} documents are empty\n", report.empty_documents);
      continue;
    }
    is_sound = false;
    print_out("{}: damaged\n", data_prefix(prefix));
    for (const std::string& fault : report.faults) print_out("  {}\n", fault);
  }
  return is_sound ? kExitSuccess : kExitFailure;
}

constexpr Command kPrepareTopics[] = {
    {"merge", "several data sets into one", prepare_merge},
    {"flux", "pictures and captions into latents and embeddings", prepare_flux_pictures},
    {"check", "whether data sets are whole and their ids in the vocabulary", prepare_check},
};

}  // namespace

int run_prepare(CommandContext& context) {
  for (const Command& topic : kPrepareTopics) {
    if (!context.arguments.empty() && context.arguments[0] == topic.name) {
      return run_topic(context, "prepare", kPrepareTopics);
    }
  }
  const auto sft = std::find(context.arguments.begin(), context.arguments.end(), "--sft");
  if (sft != context.arguments.end()) {
    context.arguments.erase(sft);
    context.command = "prepare --sft";
    return prepare_sft_files(context);
  }
  PrepareOptions options;
  OptionSet set(options);
  const Resolution resolution = resolve(set, context.config_inputs());
  if (resolution.wants_help) {
    std::string usage = "usage: megalith prepare --input FILE ... --output_prefix PREFIX [--option value ...]";
    for (const Command& topic : kPrepareTopics) {
      usage += fmt::format("\n       megalith prepare {:<6} --help   {}", topic.name, topic.summary);
    }
    usage += "\n       megalith prepare --sft  --help   instruction data into tokens and masks";
    return print_help(context, usage, set);
  }
  for (const std::string& note : resolution.notes) context.log.note("{}", note);
  std::vector<UserError> errors = refuse_urls(set, {"input"});
  if (options.input.empty()) errors.emplace_back("no input given", "name JSON-lines or text files with --input");
  if (options.output_prefix.empty()) {
    errors.emplace_back("no output_prefix given", "give the path that the .bin and .idx files shall begin with");
  }
  throw_if_any(errors);
  resolve_hub_option("tokenizer_model", options.tokenizer.tokenizer_model, HubNeed::kTokenizer, context.environment,
                     options.hub, context.log);
  std::vector<std::string> inputs;
  for (const std::string& input : options.input) {
    if (is_object_url(input)) {
      inputs.push_back(fetch_object_texts(input, context.log));
      continue;
    }
    for (std::string& file : resolve_hub_texts("input", input, context.environment, options.hub, context.log)) {
      inputs.push_back(std::move(file));
    }
  }
  options.input = std::move(inputs);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  print_out("{}", describe(prepare_data(options, *tokenizer, context.log)));
  return kExitSuccess;
}

std::vector<CommandOptions> prepare_options() {
  return {options_of<PrepareOptions>("prepare"), options_of<MergeOptions>("prepare merge"),
          options_of<CheckOptions>("prepare check"), prepare_sft_options(), prepare_flux_options()};
}

}  // namespace megalith
