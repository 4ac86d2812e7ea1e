#include "kinds/text/sft_path.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "config/option_value.h"
#include "hub/names.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// "1000", "20%", or "" for the fallback; nothing for other texts.
std::optional<RowRange::Bound> parse_bound(std::string text, RowRange::Bound fallback) {
  if (text.empty()) return fallback;
  const bool is_percent = text.ends_with('%');
  if (is_percent) text.pop_back();
  const auto value = parse_integer(text);
  if (!value || *value < 0 || (is_percent && *value > 100)) return std::nullopt;
  return RowRange::Bound{*value, is_percent};
}

std::optional<RowRange> parse_range(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  RowRange range;
  const auto begin = parse_bound(text.substr(0, colon), range.begin);
  const auto end = parse_bound(text.substr(colon + 1), range.end);
  if (!begin || !end) return std::nullopt;
  return RowRange{*begin, *end};
}

bool is_split_word(const std::string& text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
}

}  // namespace

SftPath parse_sft_path(const std::string& text) {
  std::error_code code;
  // The last bracket, or of two the outer: a name may have others.
  size_t open = text.rfind('[');
  if (text.ends_with("]]") && open != std::string::npos && open > 0) open = text.rfind('[', open - 1);
  if (open == std::string::npos || !text.ends_with(']') || fs::exists(text, code)) return {text, {}, {}};
  SftPath path{text.substr(0, open), {}, {}};
  std::string part = text.substr(open + 1, text.size() - open - 2);
  const size_t inner = part.find('[');
  const bool has_split = inner != std::string::npos && part.ends_with(']');
  const std::string split = has_split ? part.substr(0, inner) : part;
  path.rows = parse_range(has_split ? part.substr(inner + 1, part.size() - inner - 2) : part);
  if (path.rows && !has_split) return path;
  // Without a range a pattern looks alike, "shard[ab]": only what can be no pattern of files is a split.
  const bool is_set =
      path.rows || fs::is_directory(path.path, code) || parse_hub_name(path.path, HubRepoType::kDataset);
  if (!is_split_word(split) || (has_split && !path.rows) || !is_set) return {text, {}, {}};
  path.split = split;
  return path;
}

}  // namespace megalith
