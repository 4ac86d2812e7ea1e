#include "train/text_tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "config/option_value.h"
#include "tokenizer/tokenizer.h"
#include "train/config.h"

namespace megalith {
namespace {

constexpr const char* kTextTokenizer = "text_tokenizer";  // in the record; not an option

}  // namespace

std::optional<std::string> text_tokenizer(const Resolved& resolved) {
  const Derived& d = resolved.derived;
  const bool is_models_own = d.tokenizer.is_named() && d.tokenizer.tokenizer_model == d.checkpoint.load_hf;
  if (d.tokenizer.is_named() && !is_models_own) return std::nullopt;
  std::error_code error;
  if (d.checkpoint.load_hf &&
      std::filesystem::exists(std::filesystem::path(*d.checkpoint.load_hf) / "tokenizer.json")) {
    return std::filesystem::absolute(*d.checkpoint.load_hf, error).lexically_normal().string();
  }
  return d.text_tokenizer;
}

std::optional<std::string> text_tokenizer_of(const Configuration& configuration) {
  const auto found = std::find_if(configuration.begin(), configuration.end(),
                                  [](const auto& entry) { return entry.first == kTextTokenizer; });
  if (found == configuration.end()) return std::nullopt;
  return plain_text(found->second);
}

void remember_text_tokenizer(const Resolved& resolved, Configuration& configuration) {
  if (const auto folder = text_tokenizer(resolved)) configuration.emplace_back(kTextTokenizer, yaml_scalar(*folder));
}

void keep_tokenizer_paths(Configuration& configuration) {
  for (auto& [name, value] : configuration) {
    if (name != "tokenizer_model" && name != "vocab_file" && name != "merge_file") continue;
    const std::filesystem::path path = plain_text(value);
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;  // unset, or a name of the hub
    value = yaml_scalar(std::filesystem::absolute(path, error).lexically_normal().string());
  }
}

std::optional<std::string> note_of_missing_tokens(const Tokenizer& tokenizer, const Config& config,
                                                  int64_t vocab_size) {
  constexpr int64_t kRoundSizeShare = 50;  // Phi-2 has 51 200 rows for 50 295 tokens
  ModelConfig padded = config.model;
  padded.vocab_size = tokenizer.vocab_size() + config.extra_vocab_size;
  const int64_t explained = padded.padded_vocab_size(config.parallel.tensor_model_parallel_size);
  if (vocab_size - explained <= vocab_size / kRoundSizeShare) return std::nullopt;
  return fmt::format(
      "the tokenizer {} has {} ids, and the model's vocabulary {}: the others have no text, and are "
      "shown as <|id:{}|>",
      tokenizer.name(), tokenizer.vocab_size(), vocab_size, tokenizer.vocab_size());
}

}  // namespace megalith
