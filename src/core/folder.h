// Folders' contents, without throwing: the unreadable is absent.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace megalith {

// Follows links: dangling ones are absent.
bool is_there(const std::filesystem::path& path);

// Sorted, with hidden ones.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace megalith
