#include "kinds/text/sft_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "core/collect_errors.h"
#include "core/error.h"
#include "data/throw_errors.h"
#include "hub/texts.h"
#include "kinds/text/sft_rows.h"
#include "kinds/text/sft_set.h"

namespace megalith {
namespace {

// A bound as a number of rows; percents to the nearest row, as datasets rounds them.
int64_t rows_before(const RowRange::Bound& bound, int64_t total) {
  if (!bound.is_percent) return std::min(bound.value, total);
  return std::llround(static_cast<double>(total) * static_cast<double>(bound.value) / 100);
}

int64_t count_rows(const std::string& path, const SftOptions& options, int64_t most) {
  SftReader reader({path}, std::nullopt, options.sft_column);
  int64_t rows = 0;
  while (rows < most && reader.next()) ++rows;
  return rows;
}

// The part of each input that makes up this part of them all.
std::vector<std::string> cut(const std::vector<PrepareInput>& inputs, const RowRange& range, const SftOptions& options,
                             const std::string& what) {
  const int64_t most = range.has_percent() ? std::numeric_limits<int64_t>::max() : range.end.value;
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (const PrepareInput& input : inputs) {
    counts.push_back(count_rows(input.path, options, most - total));
    total += counts.back();
  }
  const int64_t begin = rows_before(range.begin, total), end = rows_before(range.end, total);
  if (begin >= end) {
    throw UserError(fmt::format("{}: no row of the {} is in this part", what, total), "name a part that has rows");
  }
  std::vector<std::string> paths;
  int64_t before = 0;
  for (size_t i = 0; i < inputs.size(); before += counts[i++]) {
    const int64_t from = std::max(begin - before, int64_t{0}), to = std::min(end - before, counts[i]);
    if (from < to) paths.push_back(fmt::format("{}[{}:{}]", inputs[i].path, from, to));
  }
  return paths;
}

}  // namespace

std::vector<std::string> resolve_sft_paths(const std::string& option, const std::vector<std::string>& paths,
                                           const EnvironmentMap& environment, const HubOptions& hub,
                                           const SftOptions& options, Logger& log) {
  std::vector<std::string> resolved;
  std::vector<UserError> errors;
  for (const std::string& text : paths) {
    if (is_prepared_sft(text)) {
      resolved.push_back(text);
      continue;
    }
    collect(errors, [&] {
      const SftPath path = parse_sft_path(text);
      std::error_code code;
      if (path.split && *path.split != "train" && std::filesystem::is_regular_file(path.path, code)) {
        throw UserError(fmt::format("{} {}: a file has no split {}", option, text, *path.split),
                        "name only the file, or a part of its rows: FILE[:1000]");
      }
      const std::optional<std::string> split = path.split ? path.split : options.sft_dataset_split;
      std::vector<std::string> files = resolve_hub_texts(option, path.path, environment, hub, log, split);
      if (path.rows || path.split) {
        const SftReader reader(files, split, options.sft_column);
        files.clear();
        for (const PrepareInput& input : reader.inputs()) files.push_back(input.path);
        if (path.rows) files = cut(reader.inputs(), *path.rows, options, fmt::format("{} {}", option, text));
      }
      resolved.insert(resolved.end(), files.begin(), files.end());
    });
  }
  throw_errors(errors);
  return resolved;
}

}  // namespace megalith
