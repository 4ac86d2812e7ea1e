// Numbers that a model told of a step, by name, as the trainer hands them on without knowing what they mean.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

struct ObservedValues {
  std::string name;    // "expert_tokens"
  int64_t layer = -1;  // number in the whole model; -1: of no layer
  std::vector<double> values;
};

}  // namespace megalith
