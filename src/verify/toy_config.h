// A configuration at toy width, whose layout can be compared with one rank within seconds.
//
// It keeps what spreads work and data: parallel sizes (as toy_world.h allows), kinds and schedules, dispatchers,
// sharding, overlap, recomputation; also the model's parts and dropout. It shrinks widths, layers, sequences,
// vocabulary, batch, to awkward sizes that reveal wrong orders and shifted slices: several heads per key, a padded
// vocabulary, widths no rank divides. It leaves out data, tokenizer, checkpoints, learning rate curve and sinks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/config.h"
#include "verify/toy_world.h"

namespace megalith {

struct CheckedConfig {
  std::unique_ptr<Resolved> resolved;
  std::optional<int64_t> world_size;  // unset: no launcher, no dry_run_world_size
};
// As `train` would take it; errors are resolve_config()'s. Fetches neither weights nor data.
//   launched_ranks  1: no launcher
CheckedConfig resolve_for_check(const ConfigInputs& inputs, int64_t launched_ranks);

struct ToyLayers {
  std::vector<int64_t> sources;  // per layer, the user's that it represents; ascending
  std::string pipeline_layout;   // pipeline_model_parallel_layout; may be empty
};
// One layer per stage, two where the user's stage exceeds the shortest; doubled if recomputation divides a stage's
// layers.
ToyLayers make_toy_layers(const Resolved& user, const ToyWorld& world);

enum class ToyPrecision {
  kExact,       // float64 on reference operators: rounding is far below mistakes
  kConfigured,  // float32 on configured operators, compared with reference ones on one rank
};

struct ToyConfig {
  std::unique_ptr<Resolved> layout;    // of derived.world_size ranks
  std::unique_ptr<Resolved> one_rank;  // the same task
  std::vector<std::string> set_aside;  // the user's parts that are not checked: "bf16"

  std::string text() const;  // family and sizes
};

// InternalError if the toy breaks resolve_config()'s rules.
ToyConfig make_toy_config(const Resolved& user, const ToyWorld& world, ToyPrecision precision, int num_steps);

}  // namespace megalith
