// Paths of instruction data, perhaps with the part of their rows that is read, as Hugging Face's datasets write it:
//
//   chats.jsonl[:1000]         the first 1000 rows
//   org/name[test]             a data set's split, instead of that of sft_dataset_split
//   org/name[train[95%:]]      the last twentieth of one
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "config/yaml_document.h"
#include "core/log.h"
#include "data/sft_options.h"
#include "hub/options.h"

namespace megalith {

// Rows [begin, end), in percent of them all or as numbers.
struct RowRange {
  struct Bound {
    int64_t value;
    bool is_percent;
  };
  Bound begin{0, false}, end{std::numeric_limits<int64_t>::max(), false};

  bool has_percent() const { return begin.is_percent || end.is_percent; }
};

struct SftPath {
  std::string path;
  std::optional<std::string> split;
  std::optional<RowRange> rows;
};

// A path that exists, or ends in no such part, is taken whole. UserError for an empty range.
SftPath parse_sft_path(const std::string& text);

// The files and folders of such paths: data sets of the hub are fetched, and a part of several files becomes a part of
// each, for which their rows may have to be counted. Paths of files that prepare --sft made stay as they are.
std::vector<std::string> resolve_sft_paths(const std::string& option, const std::vector<std::string>& paths,
                                           const EnvironmentMap& environment, const HubOptions& hub,
                                           const SftOptions& options, Logger& log);

}  // namespace megalith
