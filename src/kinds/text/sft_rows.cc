// See sft_rows.h.
#include "kinds/text/sft_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "data/arrow_source.h"
#include "hub/text_files.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLongestRow = int64_t{1} << 28;

std::vector<PrepareInput> inputs_of(const std::vector<std::string>& paths, const std::optional<std::string>& split,
                                    std::vector<std::string>& skipped) {
  std::vector<PrepareInput> all;
  for (const std::string& path : paths) {
    std::vector<PrepareInput> found = find_inputs({path}, /*all_plain=*/false, &skipped);
    if (split && fs::is_directory(path)) {
      std::erase_if(found, [&](const PrepareInput& input) {
        return !is_of_split(fs::path(input.path).lexically_relative(path).generic_string(), *split);
      });
      if (found.empty()) {
        throw UserError(fmt::format("{} holds no file of the split {}", path, *split),
                        "sft_dataset_split is the word that the names of its files or folders begin with");
      }
    }
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

}  // namespace

std::string SftLine::where() const { return fmt::format("{}:{}", file, number); }

SftReader::SftReader(const std::vector<std::string>& paths, const std::optional<std::string>& split,
                     std::optional<std::string> column)
    : inputs_(inputs_of(paths, split, skipped_)), column_(std::move(column)) {}

std::optional<SftLine> SftReader::next() {
  for (;;) {
    if (!rows_) {
      if (next_input_ == inputs_.size()) return std::nullopt;
      const PrepareInput& input = inputs_[next_input_++];
      const auto columns = column_ ? std::vector{*column_} : std::vector<std::string>{};
      rows_.emplace(input.is_rows ? open_rows(input.path, columns) : open_text(input.path), input.name(), kLongestRow);
    }
    if (std::optional<std::string> row = rows_->next()) return SftLine{rows_->name(), rows_->number(), std::move(*row)};
    bytes_before_ += inputs_[next_input_ - 1].bytes;
    rows_.reset();
  }
}

}  // namespace megalith
