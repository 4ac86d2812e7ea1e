#include "parallel/pipeline/pipeline_plan.h"

#include "core/error.h"

namespace megalith {

PipelineShape PipelinePlan::shape(int num_microbatches) const {
  return {num_ranks, num_chunks, num_microbatches, order};
}

PipelineSchedule PipelinePlan::schedule(int num_microbatches) const {
  return with_communication(make_pipeline_schedule(algorithm, shape(num_microbatches), microbatch_group));
}

LayerRange PipelinePlan::layers_of(const UnitRange& stage) const {
  return {.first = count_units(units_in(units, {0, stage.first}), UnitLetter::kLayer),
          .count = count_units(units_in(units, stage), UnitLetter::kLayer)};
}

std::map<std::string, std::set<int>> PipelinePlan::parameter_holders() const {
  std::map<std::string, int> rank_of_unit;
  std::map<std::string, std::set<int>> holders;
  const PipelineShape shape = this->shape(1);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const int rank = shape.rank_of(narrow<int>(stage));
    for (const Unit& unit : units_in(units, stages[stage])) {
      rank_of_unit[unit.name] = rank;
      for (const UsedParameter& used : unit.uses) {
        const auto owner = rank_of_unit.find(used.unit);
        MEGALITH_CHECK(owner != rank_of_unit.end(), "{} of {} is used before it is there", used.parameter, used.unit);
        holders[used.parameter].insert({owner->second, rank});
      }
    }
  }
  return holders;
}

}  // namespace megalith
