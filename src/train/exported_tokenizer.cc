#include "train/exported_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "config/resolve.h"
#include "core/error.h"

namespace megalith {

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
    log.note("save_hf: the ends of texts are not those of the tokenizer, which cannot be opened: {}", error.message());
    return nullptr;
  }
  auto bytes = make_byte_tokenizer();
  if (bytes->vocab_size() == model.vocab_size) return bytes;
  return nullptr;
}

}  // namespace megalith
