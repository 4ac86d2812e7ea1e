// See prepare_sft.h.
#include "cli/prepare_sft.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "cli/help.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "hub/hub.h"
#include "kinds/text/sft_paths.h"
#include "kinds/text/sft_set.h"

namespace megalith {
namespace {

struct SftPreparation {
  std::vector<std::string> input;
  std::string output_prefix;
  std::optional<std::string> load_hf;
  bool overwrite = false;
  SftOptions sft;
  TokenizerOptions tokenizer;
  HubOptions hub;

  void visit(OptionVisitor& v) {
    v.group("Preparing");
    v.field("input", input,
            "Files or folders of rows (JSON lines, JSON lists, Parquet, Arrow, CSV), or data sets of the hub.")
        .alias("sft_data_path")
        .alias("sft_dataset_name");
    v.field("output_prefix", output_prefix, "What the names of the files begin with: train takes it as sft_data_path.");
    v.field("load_hf", load_hf, "Folder or name of the published model whose tokenizer and chat template are used.")
        .alias("hf_path");
    v.field("overwrite", overwrite, "Replace files that are there.");
    sft.visit_rows(v);
    tokenizer.visit_standalone(v);
    hub.visit(v);
  }
};

constexpr const char* kUsage =
    "usage: megalith prepare --sft --input FILE ... --output_prefix PREFIX --load_hf MODEL [--option value ...]";

std::vector<UserError> check(const SftPreparation& options, const OptionSet& set) {
  std::vector<UserError> errors = refuse_urls(set);
  if (options.input.empty()) errors.emplace_back("no rows are named", "name a file or folder of rows with --input");
  if (options.output_prefix.empty()) {
    errors.emplace_back("no output_prefix given", "give the path that the files shall begin with");
  }
  for (const char* ending : {".json", ".bin", ".idx", "_mask.bin", "_mask.idx"}) {
    if (options.output_prefix.empty()) break;
    auto taken = check_replaceable("output_prefix", data_prefix(options.output_prefix) + ending, {}, options.overwrite);
    if (!taken) continue;
    errors.push_back(std::move(*taken));
    break;
  }
  if (!options.load_hf && !options.tokenizer.is_named()) {
    errors.emplace_back("no model is named", "its tokenizer reads the rows: --load_hf MODEL, or --tokenizer_model DIR");
  }
  return errors;
}

}  // namespace

int prepare_sft_files(CommandContext& context) {
  SftPreparation options;
  OptionSet set(options);
  const Resolution resolution = resolve(set, context.config_inputs());
  if (resolution.wants_help) return print_help(context, kUsage, set);
  for (const std::string& note : resolution.notes) context.log.note("{}", note);
  throw_if_any(check(options, set));
  std::optional<std::string>& model = options.tokenizer.tokenizer_model;
  if (!options.tokenizer.is_named()) model = options.load_hf;
  resolve_hub_option("load_hf", model, HubNeed::kTokenizer, context.environment, options.hub, context.log);
  const std::vector<std::string> files =
      resolve_sft_paths("input", options.input, context.environment, options.hub, options.sft, context.log);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  const SftEncoder encoder(*tokenizer, model.value_or(""), options.sft);
  SftReader reader(files, options.sft.sft_dataset_split, options.sft.sft_column, options.sft.sft_deduplicate);
  for (const std::string& line : reader.skipped()) context.log.note("{}", line);
  const std::string prefix = data_prefix(options.output_prefix);
  make_directories(std::filesystem::absolute(prefix).parent_path());
  const SftReport report = prepare_sft(reader, encoder, options.sft, tokenizer->vocab_size(), prefix, context.log);
  print_out("{}{}.bin, {}_mask.bin: train with --sft_data_path {}\n", describe(report), prefix, prefix, prefix);
  return kExitSuccess;
}

CommandOptions prepare_sft_options() { return options_of<SftPreparation>("prepare --sft"); }

}  // namespace megalith
