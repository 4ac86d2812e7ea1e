// What lies in a folder, asked without a fuss: whatever is missing or cannot be read is not there. Nothing throws.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace megalith {

// Links are followed: one that leads nowhere is not there.
bool is_there(const std::filesystem::path& path);

// The names in a folder, sorted, hidden ones included.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace megalith
