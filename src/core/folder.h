// The contents of folders, without throwing: what is missing or unreadable is not there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace megalith {

// Follows links: a dangling one is not there.
bool is_there(const std::filesystem::path& path);

// The sorted names in a folder, including hidden ones.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace megalith
