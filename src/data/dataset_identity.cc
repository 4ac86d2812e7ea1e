// See dataset_identity.h. Source: megatron/core/datasets/megatron_dataset.py, blended_megatron_dataset_config.py.
#include "data/dataset_identity.h"

#include <nlohmann/json.hpp>

namespace megalith {

OrderedJson DatasetIdentity::describe() const {
  OrderedJson d;
  d["class"] = class_name;
  d["dataset_path"] = path ? OrderedJson(*path) : OrderedJson(nullptr);
  d["num_samples"] = num_samples ? OrderedJson(*num_samples) : OrderedJson(nullptr);
  d["index_split"] = split_name(split);
  d["random_seed"] = seed;
  d["sequence_length"] = sequence_length;
  if (split_text.empty()) {
    d["split"] = d["split_matrix"] = nullptr;
    return d;
  }
  d["split"] = split_text;
  OrderedJson matrix = OrderedJson::array();
  double before = 0;
  for (const double share : parse_split(split_text)) {
    const double after = before + share;
    matrix.push_back(share > 0 ? OrderedJson::array({before, after}) : OrderedJson(nullptr));
    before = after;
  }
  d["split_matrix"] = std::move(matrix);
  return d;
}

}  // namespace megalith
