#include "device/fact_files.h"

#include <algorithm>
#include <charconv>

#include "core/input_file.h"
#include "core/strings.h"

namespace megalith::fact_files {

std::string file_text(const std::filesystem::path& path) { return try_read_facts(path).value_or(""); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

std::string trimmed(const std::filesystem::path& path) { return std::string(trim(file_text(path))); }

std::optional<int64_t> whole_number(std::string_view text) {
  text = trim(text);
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_numbered(const std::string& name, std::string_view prefix) {
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix.size()), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

std::map<std::string, std::string> fields_of(const std::string& text, std::string_view separators) {
  std::map<std::string, std::string> fields;
  for (const std::string& line : lines_of(text)) {
    const size_t end = line.find_first_of(separators);
    if (end == std::string::npos) continue;
    fields.emplace(std::string(trim(line.substr(0, end))), std::string(trim(line.substr(end + 1))));
  }
  return fields;
}

}  // namespace megalith::fact_files
