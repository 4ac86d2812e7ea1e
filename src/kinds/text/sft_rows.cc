// See sft_rows.h.
#include "kinds/text/sft_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "data/arrow_source.h"
#include "hub/text_files.h"
#include "kinds/text/sft_path.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLongestRow = int64_t{1} << 28;

std::vector<PrepareInput> inputs_of(const std::string& path, const std::optional<std::string>& split,
                                    std::vector<std::string>& skipped) {
  std::vector<PrepareInput> found = find_inputs({path}, /*all_plain=*/false, &skipped);
  if (!split || !fs::is_directory(path)) return found;
  std::erase_if(found, [&](const PrepareInput& input) {
    return !is_of_split(fs::path(input.path).lexically_relative(path).generic_string(), *split);
  });
  if (found.empty()) {
    throw UserError(fmt::format("{} holds no file of the split {}", path, *split),
                    "sft_dataset_split is the word that the names of its files or folders begin with");
  }
  return found;
}

}  // namespace

std::string SftLine::where() const { return fmt::format("{}:{}", file, number); }

SftReader::SftReader(const std::vector<std::string>& paths, const std::optional<std::string>& split,
                     std::optional<std::string> column, bool deduplicates)
    : deduplicates_(deduplicates), column_(std::move(column)) {
  for (const std::string& text : paths) {
    const SftPath path = parse_sft_path(text);
    const auto found = inputs_of(path.path, path.split ? path.split : split, skipped_);
    if (path.rows && (path.rows->has_percent() || found.size() != 1)) {
      throw UserError(fmt::format("{}: only a part of one file is read here, by the numbers of its rows", text),
                      "write FILE[:1000]");
    }
    for (const PrepareInput& input : found) {
      inputs_.push_back(input);
      parts_.push_back(path.rows ? Part{path.rows->begin.value, path.rows->end.value} : Part{});
    }
  }
}

std::string SftReader::parts() const {
  std::string text;
  bool is_all = true;
  for (const Part& part : parts_) {
    const bool is_whole = part.begin == 0 && part.end == Part{}.end;
    is_all = is_all && is_whole;
    text += is_whole ? "[:]" : fmt::format("[{}:{}]", part.begin, part.end);
  }
  return is_all ? "" : text;
}

std::optional<SftLine> SftReader::next() {
  for (;;) {
    std::optional<SftLine> line = next_of_all();
    if (!deduplicates_ || !line || seen_.insert(checksum128(line->json)).second) return line;
    ++num_repeated_;
  }
}

std::optional<SftLine> SftReader::next_of_all() {
  for (;;) {
    if (!rows_) {
      if (next_input_ == inputs_.size()) return std::nullopt;
      const PrepareInput& input = inputs_[next_input_++];
      const auto columns = column_ ? std::vector{*column_} : std::vector<std::string>{};
      rows_.emplace(input.is_rows ? open_rows(input.path, columns) : open_text(input.path), input.name(), kLongestRow);
      next_row_ = 0;
    }
    const Part& part = parts_[next_input_ - 1];
    while (next_row_ < part.end) {
      std::optional<std::string> row = rows_->next();
      if (!row) break;
      if (next_row_++ >= part.begin) return SftLine{rows_->name(), rows_->number(), std::move(*row)};
    }
    bytes_before_ += inputs_[next_input_ - 1].bytes;
    rows_.reset();
  }
}

}  // namespace megalith
