// How megatron-core describes a data set: the JSON whose hash names its index files. Read to find arrays that
// megatron-core built.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/json.h"
#include "data/split.h"

namespace megalith {

struct DatasetIdentity {
  std::string class_name;           // "GPTDataset"
  std::optional<std::string> path;  // nothing: mock data, which have none
  std::optional<int64_t> num_samples;
  Split split = Split::kTrain;
  uint32_t seed = 1234;
  int64_t sequence_length = 0;
  std::string split_text;  // as the user wrote it; empty: the data set is used whole

  // The fields that all data sets have, in megatron-core's order and without the tokenizer.
  OrderedJson describe() const;
};

}  // namespace megalith
