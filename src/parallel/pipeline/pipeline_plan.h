// The requested pipeline: each stage's units, and the schedule.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "nn/unit.h"
#include "parallel/pipeline/schedule.h"

namespace megalith {

// Layers first … first + count - 1 of the whole model.
struct LayerRange {
  int64_t first = 0, count = 0;
  bool operator==(const LayerRange&) const = default;
};

struct PipelinePlan {
  PipelineAlgorithm algorithm = PipelineAlgorithm::k1f1b;
  StageOrder order = StageOrder::kLoop;
  int num_ranks = 1, num_chunks = 1;
  int microbatch_group = 0;  // 0: num_ranks
  bool counts_ends = false;  // layers were shared with the embedding and the head as a layer each
  std::vector<Unit> units;
  std::vector<UnitRange> stages;  // consecutive, in model order

  // True if weight gradients are separate actions.
  bool splits_backward() const {
    return algorithm == PipelineAlgorithm::kZeroBubble || algorithm == PipelineAlgorithm::kZeroBubbleV;
  }
  PipelineShape shape(int num_microbatches) const;
  PipelineSchedule schedule(int num_microbatches) const;  // including transfers

  // A stage's layers; may be empty.
  LayerRange layers_of(const UnitRange& stage) const;
  // Parameters shared between units (Unit::uses), by canonical name, with the pipeline ranks that hold them and sum
  // their gradients.
  std::map<std::string, std::set<int>> parameter_holders() const;
};

}  // namespace megalith
