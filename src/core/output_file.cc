#include "core/output_file.h"

#include "core/input_file.h"

namespace megalith {
namespace {

constexpr size_t kBeginning = 4096;  // bytes searched

bool holds_mark(const std::filesystem::path& path, std::string_view mark) {
  try {
    return !mark.empty() && read_beginning(path, kBeginning).find(mark) != std::string::npos;
  } catch (const UserError&) {
    return false;  // not known to be ours
  }
}

}  // namespace

std::optional<UserError> check_replaceable(std::string_view option, const std::filesystem::path& path,
                                           std::string_view mark, bool overwrite) {
  std::error_code error;
  if (overwrite || !std::filesystem::is_regular_file(path, error)) return std::nullopt;
  if (std::filesystem::file_size(path, error) == 0 || holds_mark(path, mark)) return std::nullopt;
  return UserError(fmt::format("{} {}: a file is there{}", option, path.string(),
                               mark.empty() ? "" : ", and this program did not write it for that"),
                   "replace it with --overwrite, or name another file");
}

}  // namespace megalith
