// Numbers by which a model reports on a step, each with a name. The trainer need not know what they mean.
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
