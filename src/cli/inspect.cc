// megalith inspect: what is in a configuration, data set, tokenizer, checkpoint or model.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "cli/inspect_model.h"
#include "cli/session.h"
#include "core/error.h"
#include "core/file.h"
#include "core/help.h"
#include "core/hub.h"
#include "core/json.h"
#include "core/strings.h"
#include "data/indexed_dataset.h"
#include "train/setup.h"

namespace megalith {
namespace {

// `inspect config [--config FILE] [options] [--explain KEY]`: every option's value and who set it.
int inspect_config(CommandContext& context) {
  std::optional<std::string> explain_key;
  bool all = false, markdown = false;
  const auto declare = [&](OptionVisitor& v) {
    v.group("Inspection");
    v.field("explain", explain_key, "Show every layer that gave this option a value.");
    v.field("all", all, "Show options that have their default too.");
    v.field("markdown", markdown, "Print the reference page of all options.");
  };
  // A configuration that cannot run can still be looked at: only what cannot be read is an error here.
  Resolved resolved(declare);
  const Resolution resolution = resolve(*resolved.options, context.config_inputs());
  if (resolution.wants_help) {
    fmt::print("usage: megalith inspect config [--config FILE] [--option value ...] [--explain KEY]\n\n{}",
               help_text(*resolved.options));
    return kExitSuccess;
  }
  for (const std::string& note : resolution.notes) context.log.note("{}", note);
  if (markdown) {
    // The command's own options do not belong on the page.
    Config defaults;
    fmt::print("{}", options_markdown(OptionSet(defaults), "Options of megalith train"));
    return kExitSuccess;
  }
  if (explain_key) {
    const Option* option = resolved.options->find(*explain_key);
    if (option == nullptr) {
      const std::string nearest = resolved.options->nearest(*explain_key);
      throw UserError(fmt::format("no option is called '{}'.{}", *explain_key,
                                  nearest.empty() ? "" : fmt::format(" Did you mean '{}'?", nearest)));
    }
    fmt::print("{}\n", explain(*option));
    return kExitSuccess;
  }
  fmt::print("{}", resolved_yaml(*resolved.options, all ? Shown::kAll : Shown::kNonDefault));
  return kExitSuccess;
}

struct DataInspection {
  std::vector<std::string> data_path;
  int64_t num_samples = 3;
  TokenizerOptions tokenizer;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("data_path", data_path, "Prefixes of .bin and .idx files.");
    v.field("num_samples", num_samples, "Documents to show.").at_least(0);
    tokenizer.visit_standalone(v);
  }
};

// `inspect data PREFIX …`: counts, lengths, and the beginnings of a few documents.
int inspect_data(CommandContext& context) {
  DataInspection options;
  OptionSet set(options);
  ConfigInputs inputs = context.config_inputs();
  inputs.allow_positional = true;
  const Resolution resolution = resolve(set, inputs);
  if (resolution.wants_help) {
    fmt::print("usage: megalith inspect data PREFIX ...\n\n{}", help_text(set));
    return kExitSuccess;
  }
  std::vector<std::string> prefixes = resolution.positional;
  prefixes.insert(prefixes.end(), options.data_path.begin(), options.data_path.end());
  if (prefixes.empty()) throw UserError("no data set given", "name the prefix of its .bin and .idx files");
  resolve_hub_option("tokenizer_model", options.tokenizer.tokenizer_model, HubNeed::kTokenizer, context.environment,
                     context.log);
  for (std::string& prefix : prefixes) {
    prefix = resolve_hub_path("data_path", prefix, HubNeed::kTokenData, context.environment, context.log).string();
  }
  const std::unique_ptr<Tokenizer> tokenizer =
      options.tokenizer.is_named() ? make_tokenizer(options.tokenizer) : nullptr;
  for (const std::string& prefix : prefixes) {
    const IndexedDataset data(prefix);
    int64_t shortest = INT64_MAX, longest = 0;
    for (int64_t i = 0; i < data.num_sequences(); ++i) {
      shortest = std::min(shortest, data.sequence_length(i));
      longest = std::max(longest, data.sequence_length(i));
    }
    if (data.num_sequences() == 0) shortest = 0;
    fmt::print("{}\n  documents {}\n  sequences {}\n  tokens {} of {} bytes\n", data.name(), data.num_documents(),
               data.num_sequences(), data.num_tokens(), token_bytes_of(data.token_type()));
    fmt::print("  sequence length: shortest {}, mean {:.1f}, longest {}\n", shortest,
               static_cast<double>(data.num_tokens()) / static_cast<double>(std::max<int64_t>(data.num_sequences(), 1)),
               longest);
    for (int64_t i = 0; i < std::min(options.num_samples, data.num_sequences()); ++i) {
      std::vector<int64_t> ids(static_cast<size_t>(std::min<int64_t>(data.sequence_length(i), 32)));
      data.read(i, 0, static_cast<int64_t>(ids.size()), ids.data());
      fmt::print("  {}: {}\n", data.describe(i), dump_json(Json(ids)));
      if (tokenizer != nullptr) {
        const std::vector<int32_t> narrow_ids(ids.begin(), ids.end());
        fmt::print("    {}\n", dump_json(Json(tokenizer->decode(narrow_ids))));
      }
    }
  }
  return kExitSuccess;
}

struct TokenizerInspection {
  TokenizerOptions tokenizer;
  std::optional<std::string> text, encode_file, decode;
  bool add_special_tokens = false;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("text", text, "Text to encode; its ids are printed as a JSON array.");
    v.field("encode_file", encode_file, "File whose lines are encoded: one JSON array of ids a line.");
    v.field("decode", decode, "Ids to decode, separated by commas or blanks.");
    v.field("add_special_tokens", add_special_tokens, "Add the tokens that begin and end a text.");
    tokenizer.visit_standalone(v);
  }
};

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int64_t> ids;
  struct Holder {
    std::vector<int64_t>& ids;
    void visit(OptionVisitor& v) { v.field("decode", ids, ""); }
  } holder{ids};
  OptionSet set(holder);
  set.find("decode")->set(text, {OptionLayer::kCommandLine, "command line"});
  std::vector<int32_t> result;
  for (const int64_t id : ids) result.push_back(narrow<int32_t>(id));
  return result;
}

int inspect_tokenizer(CommandContext& context) {
  TokenizerInspection options;
  OptionSet set(options);
  const Resolution resolution = resolve(set, context.config_inputs());
  if (resolution.wants_help) {
    fmt::print("usage: megalith inspect tokenizer --tokenizer_model DIR [--encode_file F]\n\n{}", help_text(set));
    return kExitSuccess;
  }
  resolve_hub_option("tokenizer_model", options.tokenizer.tokenizer_model, HubNeed::kTokenizer, context.environment,
                     context.log);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  if (options.decode) {
    fmt::print("{}\n", tokenizer->decode(parse_ids(*options.decode)));
  } else if (options.text) {
    fmt::print("{}\n", dump_json(Json(tokenizer->encode(*options.text, options.add_special_tokens))));
  } else if (options.encode_file) {
    const std::string text = read_file(*options.encode_file);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = std::string_view(text).substr(begin, end - begin);
      fmt::print("{}\n", dump_json(Json(tokenizer->encode(line, options.add_special_tokens))));
      begin = end + 1;
    }
  } else {
    fmt::print("{}\n  vocabulary {}\n", tokenizer->name(), tokenizer->vocab_size());
    if (tokenizer->eod()) fmt::print("  end of document {}\n", *tokenizer->eod());
    if (tokenizer->bos()) fmt::print("  beginning of text {}\n", *tokenizer->bos());
  }
  return kExitSuccess;
}

// `inspect checkpoint DIR`: what a checkpoint folder holds, and whether its bytes are as they were written.
int inspect_checkpoint(CommandContext& context) {
  if (context.arguments.size() != 1 || context.wants_help()) {
    fmt::print("usage: megalith inspect checkpoint DIR\n");
    return context.wants_help() ? kExitSuccess : kExitUserError;
  }
  const std::filesystem::path root = context.arguments[0];
  std::vector<std::filesystem::path> folders;
  if (std::filesystem::exists(root / kManifestFile)) {
    folders.push_back(root);
  } else {
    for (const int64_t iteration : list_checkpoints(root)) folders.push_back(root / checkpoint_folder_name(iteration));
  }
  if (folders.empty()) {
    throw UserError(fmt::format("{} holds no checkpoint", root.string()), "give the folder that --save named");
  }
  Groups groups = Groups::single();
  bool is_intact = true;
  for (const std::filesystem::path& folder : folders) {
    const std::vector<std::string> faults = verify_checkpoint(folder, *groups.world);
    if (!faults.empty()) {
      is_intact = false;
      fmt::print("{}: damaged\n", folder.string());
      for (const std::string& fault : faults) fmt::print("  {}\n", fault);
      continue;
    }
    const Manifest manifest = load_manifest(folder);
    fmt::print("{}: intact\n  iteration {}, {} samples consumed, torch {}\n", folder.string(), manifest.train.iteration,
               manifest.train.consumed_train_samples, manifest.torch_version);
    std::map<std::string, std::pair<int64_t, int64_t>> by_key;  // elements, pieces
    for (const StoredChunk& chunk : manifest.chunks) {
      by_key[chunk.key].first += chunk.box.num_elements();
      by_key[chunk.key].second += 1;
    }
    for (const auto& [key, count] : by_key) {
      fmt::print("  {:<12} {} elements in {} tensors\n", key, count.first, count.second);
    }
  }
  return is_intact ? kExitSuccess : kExitFailure;
}

constexpr Command kTopics[] = {
    {"config", "a resolved configuration, with the layer that set each value", inspect_config},
    {"data", "counts, lengths and beginnings of .bin/.idx files", inspect_data},
    {"tokenizer", "vocabulary; encode or decode", inspect_tokenizer},
    {"checkpoint", "what a checkpoint folder holds, and whether it is intact", inspect_checkpoint},
    {"logits", "a model's logits for a prompt, as safetensors", inspect_logits},
    {"gradients", "every gradient of a model on a batch, as safetensors", inspect_gradients},
};

}  // namespace

int run_inspect(CommandContext& context) { return run_topic(context, "inspect", kTopics); }

}  // namespace megalith
