// See dataset_identity.h. Source: megatron/core/datasets/megatron_dataset.py, blended_megatron_dataset_config.py.
#include "data/dataset_identity.h"

#include <nlohmann/json.hpp>

namespace megalith {

OrderedJson megatron_description(std::string_view class_name, const TokenSource& source, const SampleRequest& request) {
  OrderedJson d;
  d["class"] = class_name;
  d["dataset_path"] = request.is_mock ? OrderedJson(nullptr) : OrderedJson(source.name());
  d["num_samples"] = request.num_samples ? OrderedJson(*request.num_samples) : OrderedJson(nullptr);
  d["index_split"] = split_name(request.split);
  d["random_seed"] = request.seed;
  d["sequence_length"] = request.sequence_length;
  if (request.split_text.empty()) {
    d["split"] = d["split_matrix"] = nullptr;
    return d;
  }
  d["split"] = request.split_text;
  OrderedJson matrix = OrderedJson::array();
  double before = 0;
  for (const double share : parse_split(request.split_text)) {
    const double after = before + share;
    matrix.push_back(share > 0 ? OrderedJson::array({before, after}) : OrderedJson(nullptr));
    before = after;
  }
  d["split_matrix"] = std::move(matrix);
  return d;
}

}  // namespace megalith
