// A path of instruction data, perhaps with the part of its rows that is read, as Hugging Face's datasets write it:
//
//   chats.jsonl[:1000]         the first 1000 rows
//   org/name[test]             a data set's split, instead of that of sft_dataset_split
//   org/name[train[95%:]]      the last twentieth of one
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

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

// A path that exists, or ends in no such part, is taken whole.
SftPath parse_sft_path(const std::string& text);

}  // namespace megalith
