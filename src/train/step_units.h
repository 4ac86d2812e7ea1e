// The cost of one microbatch in each kind of unit of a run's model, measured on the meta device as memory is: layers
// that are alike are measured once, whatever the pipeline, so thousands of layouts can be compared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/groups.h"
#include "parallel/activation_memory.h"
#include "planner/work_trace.h"
#include "train/config.h"

namespace megalith {

// Parameters of a unit whose gradients are summed over the same ranks.
struct SummedParameters {
  AxisSet axes;
  int64_t elements = 0, gradient_bytes = 0;  // trainable
  int64_t bytes = 0;                         // with frozen ones
};

struct UnitCost {
  WorkTrace forward, backward;  // without full recomputation
  std::vector<BlockMemory> blocks;
  double seen_share = 1;  // of attention's pairs
  std::vector<SummedParameters> parameters;
  int64_t weight_copies = 0;  // bytes of eight-bit ones
  int64_t parameter_bytes() const;
  int64_t gradient_bytes() const;
};

struct UnitCosts {
  std::vector<UnitCost> kinds = {};
  std::vector<size_t> kind_of = {};  // by unit of the model
  int64_t boundary_bytes = 0;   // what travels between layers
  double state_bytes = 0;       // of the optimizer, per element that a rank updates: masters and moments, wherever

  const UnitCost& of(int64_t unit) const { return kinds[kind_of[static_cast<size_t>(unit)]]; }
};

// Units in model order, with equal numbers for those that are alike. Prediction modules need the head beside them: from
// the first of them on, the rest of the model is one entry.
struct UnitOfKind {
  size_t kind = 0;
  UnitRange range;
  int64_t layer = 0;  // layers before it
};
std::vector<UnitOfKind> kinds_of_units(const Resolved& run);

// For rank 0 of the run's layout. Valid also for other pipelines, data-parallel sizes and forms of full recomputation.
UnitCosts measure_units(const Resolved& run);
// The same of a run without full recomputation, which is used up.
UnitCosts measure_units(std::unique_ptr<Resolved> run);

// The costs with a micro-batch of `micro` samples from those with one and two: what operators and collectives move and
// compute is linear in samples, and peaks are at least. Nothing if the passes differ in more than sizes.
std::optional<UnitCosts> extrapolate_units(const UnitCosts& one, const UnitCosts& two, int64_t micro);

}  // namespace megalith
