// `prepare merge`, `prepare check` and `inspect data` on finished .bin and .idx files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/log.h"
#include "data/indexed_dataset.h"

namespace megalith {

struct MergeReport {
  int64_t documents = 0, sequences = 0, tokens = 0;
};

// Concatenates the data sets' documents, as Megatron's merge_datasets.py does. The output appears when complete.
// UserError if token types differ, or the output is among the inputs.
MergeReport merge_data_sets(const std::vector<std::string>& prefixes, const std::string& output_prefix, Logger& log);

struct CheckReport {
  std::vector<std::string> faults;  // empty: no faults
  int64_t documents = 0, sequences = 0, tokens = 0, empty_documents = 0;
  int64_t smallest_id = 0, largest_id = 0;  // 0 without tokens
};

// Reads every token. vocab_size: ids at or above it are faults, as negative ones are. Files that do not open as a data
// set are a fault too.
CheckReport check_data_set(const std::string& prefix, std::optional<int64_t> vocab_size, Logger& log);

// Lengths by powers of two: counts[k] sequences have 2^(k-1) < length <= 2^k … ; counts[0] are empty, counts[1] of one.
struct LengthHistogram {
  std::vector<int64_t> counts;
  int64_t shortest = 0, longest = 0;
  double mean = 0;
};
LengthHistogram measure_lengths(const IndexedDataset& data);
// Lines such as "     33 … 64        1.2 k  ########", without leading and trailing empty rows.
std::string draw(const LengthHistogram& histogram);

}  // namespace megalith
