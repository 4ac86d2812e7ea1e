// See text_tokenizer.h.
#include "train/text_tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "config/option_value.h"
#include "train/config.h"

namespace megalith {
namespace {

constexpr const char* kTextTokenizer = "text_tokenizer";  // the record's name, which is no option's

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

}  // namespace megalith
