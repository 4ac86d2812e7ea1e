// A step's numbers from the model, opaque to the trainer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

struct ObservedValues {
  std::string name;    // "expert_tokens"
  int64_t layer = -1;  // in the whole model; -1: none
  std::vector<double> values;
};

}  // namespace megalith
