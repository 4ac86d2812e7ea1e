// Small files of /proc and the like. Missing files read as empty; nothing throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::fact_files {

std::string file_text(const std::filesystem::path& path);
std::vector<std::string> lines_of(const std::string& text);
std::string trimmed(const std::filesystem::path& path);
// Null unless the trimmed text is one number.
std::optional<int64_t> whole_number(std::string_view text);
// "cpu17", "node0".
bool is_numbered(const std::string& name, std::string_view prefix);
// Lines "Key:   value" or "Key value".
std::map<std::string, std::string> fields_of(const std::string& text, std::string_view separators);

}  // namespace megalith::fact_files
