// A pipeline as the options ask for it: which units of a model each stage holds, and in which order the stages work.
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
  int microbatch_group = 0;       // 0: num_ranks
  std::vector<Unit> units;        // of the whole model
  std::vector<UnitRange> stages;  // which follow one another, in the order of the model

  // Whether weight gradients are actions of their own.
  bool splits_backward() const {
    return algorithm == PipelineAlgorithm::kZeroBubble || algorithm == PipelineAlgorithm::kZeroBubbleV;
  }
  PipelineShape shape(int num_microbatches) const;
  PipelineSchedule schedule(int num_microbatches) const;  // with its sends and receives

  // The layers of a stage, however many there are.
  LayerRange layers_of(const UnitRange& stage) const;
  // The parameters that units use of others (Unit::uses), by canonical name: the pipeline ranks that hold each, because
  // they have its unit or one that uses it. Where these are several, their gradients are summed.
  std::map<std::string, std::set<int>> parameter_holders() const;
};

}  // namespace megalith
