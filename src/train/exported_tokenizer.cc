#include "train/exported_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "config/resolve.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "hub/names.h"
#include "tokenizer/vocab_files.h"
#include "train/config.h"
#include "train/text_tokenizer.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

void write_if_missing(const fs::path& file, const std::string& text) {
  if (!fs::exists(file)) write_file_atomic(file, text);
}

void add_tokenizer_of_vocabulary(const fs::path& folder, const TokenizerOptions& options) {
  if (!options.vocab_file) return;
  if (options.merge_file) {
    const Json config = {{"tokenizer_class", "GPT2Tokenizer"}};
    write_if_missing(folder / "tokenizer_config.json", dump_json_pretty(config));
    return;
  }
  const bool lower_case = options.tokenizer_type == "BertWordPieceLowerCase";
  const Json tokenizer = bert_tokenizer_json(*options.vocab_file, lower_case, options.vocab_extra_ids);
  write_file_atomic(folder / "tokenizer.json", dump_json_pretty(tokenizer));
  const Json config = {{"tokenizer_class", "BertTokenizer"},
                       {"do_lower_case", lower_case},
                       {"cls_token", "[CLS]"},
                       {"sep_token", "[SEP]"},
                       {"pad_token", "[PAD]"},
                       {"mask_token", "[MASK]"},
                       {"unk_token", "[UNK]"}};
  write_file_atomic(folder / "tokenizer_config.json", dump_json_pretty(config));
}

void add_modules(const fs::path& folder, const fs::path& source) {
  const fs::path list = source / "modules.json";
  if (!fs::exists(list) || fs::equivalent(folder, source)) return;
  constexpr auto kOptions = fs::copy_options::recursive | fs::copy_options::skip_existing;
  for (const char* name : {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}) {
    if (fs::exists(source / name)) fs::copy(source / name, folder / name, kOptions);
  }
  const std::string where = list.string();
  for (const Json& module : load_json(list)) {
    const auto path = json_get_or<std::string>(module, "path", "", where);
    if (is_safe_hub_file(path) && fs::is_directory(source / path)) fs::copy(source / path, folder / path, kOptions);
  }
}

std::string folder_name(const fs::path& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

void add_generation_settings(const fs::path& folder, const fs::path& source) {
  const fs::path file = folder / "generation_config.json", theirs = source / "generation_config.json";
  if (!fs::exists(file) || !fs::exists(theirs)) return;
  Json made = load_json(file);
  const Json settings = load_json(theirs);
  for (const auto& [name, value] : settings.items()) {
    if (!made.contains(name)) made[name] = value;
  }
  made.erase("_from_model_config");
  write_file_atomic(file, dump_json_pretty(made));
}

}  // namespace

std::string model_name(const std::string& source) {
  const std::optional<HubName> name = parse_hub_name(source, HubRepoType::kModel);
  return name && is_commit(name->revision) ? name->repo : folder_name(source);
}

void choose_tokenizer_files(const TokenizerOptions& named, const std::optional<std::string>& beside_model,
                            HfExport& settings) {
  if (named.tokenizer_model) {
    settings.tokenizer = *named.tokenizer_model;
  } else if (named.vocab_file) {
    settings.vocab_file = *named.vocab_file;
    if (named.merge_file) settings.merge_file = *named.merge_file;
  } else if (!named.is_named() && beside_model && has_tokenizer_files(*beside_model)) {
    settings.tokenizer = *beside_model;
  }
}

std::vector<KeptFile> kept_files(const Resolved& resolved) {
  HfExport chosen;
  choose_tokenizer_files(resolved.derived.tokenizer, text_tokenizer(resolved), chosen);
  std::vector<fs::path> files;
  std::error_code error;
  if (chosen.tokenizer) {
    const bool is_file = fs::is_regular_file(*chosen.tokenizer, error);
    if (is_file || has_tokenizer_files(*chosen.tokenizer)) files = tokenizer_files(*chosen.tokenizer);
  }
  if (chosen.vocab_file) files.push_back(*chosen.vocab_file);
  if (chosen.merge_file) files.push_back(*chosen.merge_file);
  return keep_tokenizer(files);
}

void add_special_tokens(const Tokenizer* tokenizer, ModelConfig& model, HfExport& settings) {
  if (tokenizer == nullptr || !model.vocab_size || !(model.is_causal() || model.has_encoder())) return;
  const auto can_occur = [&](std::optional<int32_t> token) { return token && *token < *model.vocab_size; };
  std::vector<int64_t>& ends = model.eos_token_ids;
  const std::optional<int32_t> eod = tokenizer->eod(), bos = tokenizer->bos(), pad = tokenizer->pad();
  if (can_occur(eod) && std::find(ends.begin(), ends.end(), *eod) == ends.end()) ends.push_back(*eod);
  if (!model.has_encoder() && !model.bos_token_id && can_occur(bos)) model.bos_token_id = *bos;
  if (can_occur(pad)) settings.pad_token_id = *pad;
}

TokenizerOptions recorded_tokenizer(const Configuration& configuration) {
  TokenizerOptions tokenizer;
  OptionSet options(tokenizer);
  std::map<std::string, std::string> values;
  for (const auto& [name, value] : configuration) {
    if (options.find(name) != nullptr && value != "null") values[name] = plain_text(value);
  }
  apply_values(options, values, {OptionLayer::kModel, "the checkpoint's configuration"});
  return tokenizer;
}

std::unique_ptr<Tokenizer> open_tokenizer(TokenizerOptions named, const std::optional<std::string>& beside_model,
                                          const ModelConfig& model, Logger& log) {
  if (!named.is_named() && beside_model && has_tokenizer_files(*beside_model)) named.tokenizer_model = *beside_model;
  named.vocab_size = model.vocab_size;
  if (named.tokenizer_type == "NullTokenizer" && model.vocab_size) named.vocab_size = *model.vocab_size - 1;
  try {
    if (named.is_named()) return make_tokenizer(named);
  } catch (const UserError& error) {
    log.note("the exported ends of texts are not those of the tokenizer, which cannot be opened: {}", error.message());
    return nullptr;
  }
  auto bytes = make_byte_tokenizer();
  if (bytes->vocab_size() == model.vocab_size) return bytes;
  return nullptr;
}

void complete_export(const fs::path& folder, const TokenizerOptions& tokenizer,
                     const std::optional<std::string>& source) {
  add_tokenizer_of_vocabulary(folder, tokenizer);
  if (source) {
    add_modules(folder, *source);
    add_generation_settings(folder, *source);
  }
  const std::string base = source ? fmt::format("\n\nTrained from {}.", model_name(*source)) : "";
  write_if_missing(folder / "README.md",
                   fmt::format("---\nlibrary_name: transformers\n---\n\n# {}{}\n\nTrained with Megalith. Say here what "
                               "it was trained on, what it is for, and under which licence it stands.\n",
                               folder_name(folder), base));
}

}  // namespace megalith
