#include "checkpoint/kept_tokenizer.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "config/option_value.h"
#include "core/file.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "tokenizer";
// text_tokenizer (train/text_tokenizer.h) is always a folder, tokenizer_model may be one.
constexpr std::array<std::string_view, 4> kPaths = {"tokenizer_model", "vocab_file", "merge_file", "text_tokenizer"};

}  // namespace

std::vector<KeptFile> keep_tokenizer(const std::vector<fs::path>& files) {
  std::vector<KeptFile> kept;
  std::error_code error;
  for (const fs::path& file : files) {
    if (!fs::is_regular_file(file, error)) continue;
    kept.push_back({(fs::path(kFolder) / file.filename()).string(), read_file(file)});
  }
  return kept;
}

void find_kept_tokenizer(const fs::path& checkpoint, Configuration& configuration) {
  const fs::path folder = fs::absolute(checkpoint).lexically_normal() / kFolder;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return;
  for (auto& [name, value] : configuration) {
    if (value == "null" || std::find(kPaths.begin(), kPaths.end(), name) == kPaths.end()) continue;
    const fs::path path = plain_text(value);
    if (fs::exists(path, error)) continue;
    const fs::path file = folder / path.filename();
    const bool is_file = path.has_filename() && fs::is_regular_file(file, error);
    value = yaml_scalar((is_file ? file : folder).string());
  }
}

}  // namespace megalith
