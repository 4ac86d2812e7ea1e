// `megalith doctor --types`: every tensor of a step has a type on every axis of the mesh (verify/distribution.h), and
// what does not fit is found without a number: only shapes are computed, for one rank of each kind of pipeline stage,
// whatever the number of ranks. Layers that are alike are looked at once.
//
// Seen: sums and gatherings that are missing, doubled or over other ranks, in the passes, in what data parallelism
// reduces and distributes, and in what Placements say. Not seen: wrong numbers of the right type (an index, an order, a
// scale), which --parallel finds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/config.h"
#include "verify/type_watch.h"

namespace megalith {

struct TypeReport {
  std::vector<TypeFinding> findings;
  TypeCounts counts;
  std::vector<std::string> axes;  // "tp 8"
  int num_stages = 0, num_units = 0;

  bool is_ok() const { return findings.empty(); }
};

// Tests' mistakes. Members may be empty.
struct TypeHooks {
  std::function<void(Groups& groups)> change_groups;                     // before building the model
  std::function<void(Model& chunk, const Groups& groups)> change_model;  // every chunk
};

// For the run's world. UserError if its sizes have no types (TypeAxes), or if its step ends with an error before
// anything is found.
TypeReport check_types(const Resolved& run, const TypeHooks& hooks = {});

// The findings of check_types as errors of a run.
std::vector<UserError> type_errors(const Resolved& run, const TypeHooks& hooks = {});

}  // namespace megalith
