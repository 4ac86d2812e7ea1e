// megalith prepare: text into token files.
#include "data/prepare.h"

#include <cstdio>

#include "cli/command.h"
#include "core/error.h"
#include "core/help.h"
#include "core/hub.h"

namespace megalith {

int run_prepare(CommandContext& context) {
  PrepareOptions options;
  OptionSet set(options);
  const Resolution resolution = resolve(set, context.config_inputs());
  if (resolution.wants_help) {
    fmt::print("usage: megalith prepare --input FILE ... --output_prefix PREFIX [--option value ...]\n\n{}",
               help_text(set));
    return kExitSuccess;
  }
  for (const std::string& note : resolution.notes) context.log.note("{}", note);
  std::vector<UserError> errors = refuse_urls(set);
  if (options.input.empty()) errors.emplace_back("no input given", "name JSON-lines or text files with --input");
  if (options.output_prefix.empty()) {
    errors.emplace_back("no output_prefix given", "give the path that the .bin and .idx files shall begin with");
  }
  throw_if_any(errors);
  resolve_hub_option("tokenizer_model", options.tokenizer.tokenizer_model, HubNeed::kTokenizer, context.environment,
                     context.log);
  for (std::string& input : options.input) {
    input = resolve_hub_path("input", input, HubNeed::kTextFile, context.environment, context.log).string();
  }
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  fmt::print("{}", describe(prepare_data(options, *tokenizer, context.log)));
  return kExitSuccess;
}

}  // namespace megalith
