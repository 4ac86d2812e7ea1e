// A person's configuration at toy width, on which its parallel layout can be compared with one rank within seconds.
//
// It keeps what decides how work and data are spread: parallel sizes (as far as the ranks of toy_world.h go), kinds and
// schedules, dispatchers, sharding, overlap, recomputation; also the parts of the model and dropout. It shrinks what
// costs time: widths, layers, sequences, vocabulary, batch. Sizes are awkward on purpose, so that a wrong order or a
// shifted slice shows: several heads on a key, a padded vocabulary, a width that no rank divides. Data, tokenizer,
// checkpoints, the learning rate's curve and sinks are not part of it.
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
  std::optional<int64_t> world_size;  // unset: neither a launcher nor dry_run_world_size said it
};
// The configuration as `train` would take it; errors are those of resolve_config(). Weights and data are not fetched
// from a hub.
//   launched_ranks  1: started without a launcher
CheckedConfig resolve_for_check(const ConfigInputs& inputs, int64_t launched_ranks);

// The layers of a toy, and how a pipeline cuts them.
struct ToyLayers {
  std::vector<int64_t> sources;  // for each layer of the toy, the person's that it stands for; ascending
  std::string pipeline_layout;   // pipeline_model_parallel_layout; empty without a pipeline
};
// Each stage has one layer, or two when the person's stage has more than the shortest one has; twice as many when
// recomputation cuts a stage's layers into groups or recomputes only some of them.
ToyLayers make_toy_layers(const Resolved& user, const ToyWorld& world);

enum class ToyPrecision {
  kExact,       // float64 on the reference operators: rounding is far below any mistake
  kConfigured,  // float32 on the configured operators, compared with the reference ones on one rank
};

struct ToyConfig {
  std::unique_ptr<Resolved> layout;    // for a world of derived.world_size ranks
  std::unique_ptr<Resolved> one_rank;  // the same task
  std::vector<std::string> set_aside;  // what the person has on that is not part of the check: "bf16"

  std::string text() const;  // family and sizes in a few words
};

// InternalError when the toy does not satisfy the rules of resolve_config().
ToyConfig make_toy_config(const Resolved& user, const ToyWorld& world, ToyPrecision precision, int num_steps);

}  // namespace megalith
