#include "hub/text_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// train.jsonl, data/train-00000-of-00002.parquet, train/0.parquet; not training.txt.
bool is_for_training(const std::string& file) {
  const std::string name = lower_case(file);
  for (size_t at = name.find("train"); at != std::string::npos; at = name.find("train", at + 1)) {
    const bool begins = at == 0 || !is_letter(name[at - 1]);
    const bool ends = at + 5 == name.size() || !is_letter(name[at + 5]);
    if (begins && ends) return true;
  }
  return false;
}

std::string shown(const std::set<std::string>& names) {
  constexpr size_t kMost = 8;
  std::vector<std::string> first;
  for (const std::string& name : names) {
    if (first.size() == kMost) {
      first.emplace_back("…");
      break;
    }
    first.push_back(name);
  }
  return join(first, ", ");
}

}  // namespace

bool is_texts_name(std::string_view file) {
  std::string name = lower_case(file.substr(file.rfind('/') == std::string_view::npos ? 0 : file.rfind('/') + 1));
  if (name.starts_with('.') || name.starts_with('_')) return false;
  for (const std::string_view ending : {".gz", ".xz", ".zst", ".bz2"}) {
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  const std::string_view endings[] = {".jsonl", ".ndjson", ".txt", ".parquet", ".arrow", ".feather", ".csv", ".tsv"};
  return std::any_of(std::begin(endings), std::end(endings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_of_split(std::string_view file, std::string_view split) {
  for (size_t begin = 0; begin < file.size();) {
    const std::string_view part = file.substr(begin, file.find('/', begin) - begin);
    if (part.starts_with(split)) return true;
    begin += part.size() + 1;
  }
  return false;
}

std::vector<std::string> choose_texts(const std::vector<std::string>& files, const std::string& inner,
                                      const std::string& repo, const std::optional<std::string>& split) {
  if (std::find(files.begin(), files.end(), inner) != files.end()) return {inner};
  const std::string folder = inner.empty() || inner.ends_with('/') ? inner : inner + "/";
  std::vector<std::string> texts;
  for (const std::string& file : files) {
    if (file.starts_with(folder) && is_texts_name(file)) texts.push_back(file);
  }
  // Beside tables, plain text is notes and lists.
  const auto is_plain = [](const std::string& file) { return lower_case(file).ends_with(".txt"); };
  if (!std::all_of(texts.begin(), texts.end(), is_plain)) std::erase_if(texts, is_plain);
  const auto is_other = [&](const std::string& file) {
    const std::string name = file.substr(folder.size());
    return split ? !is_of_split(name, *split) : !is_for_training(name);
  };
  if (split || !std::all_of(texts.begin(), texts.end(), is_other)) std::erase_if(texts, is_other);
  if (texts.empty()) {
    throw UserError(
        fmt::format("the dataset {} holds no texts{}{}; it has: {}", repo,
                    inner.empty() ? "" : fmt::format(" in '{}'", inner),
                    split ? fmt::format(" of the split '{}'", *split) : "", shown({files.begin(), files.end()})),
        fmt::format("write {}/FILE or {}/FOLDER", repo, repo));
  }
  std::set<std::string> configurations;
  for (const std::string& file : texts) {
    const size_t slash = file.find('/');
    if (slash != std::string::npos) configurations.insert(file.substr(0, slash));
  }
  if (inner.empty() && configurations.size() > 1) {
    throw UserError(fmt::format("the dataset {} has several configurations: {}", repo, shown(configurations)),
                    fmt::format("write {}/{}", repo, *configurations.begin()));
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

}  // namespace megalith
