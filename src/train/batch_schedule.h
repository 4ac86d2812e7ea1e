// How many samples a step takes: the global batch, constant or growing (ramp-up), as whole microbatches of all
// data-parallel ranks.
//
//   ramp-up (start, increment, samples), with per = samples / ((global - start) / increment):
//     consumed > samples: global;  else start + increment * floor(consumed / per)
// A function of only the samples consumed, so resuming needs nothing. With decrease_batch_size_if_needed a size that
// is no multiple of micro_batch_size times the data-parallel size is rounded down, and what is left out is counted.
// Source: Megatron-LM megatron/core/num_microbatches_calculator.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/error.h"

namespace megalith {

struct BatchRampup {
  int64_t start = 1, increment = 1, samples = 0;
};

class BatchSchedule {
 public:
  BatchSchedule() = default;
  // rampup     as given: three numbers, or empty for a constant size
  // decreases  decrease_batch_size_if_needed
  // Adds what cannot work to errors, and is then constant.
  BatchSchedule(int64_t global_batch_size, int64_t micro_batch_size, int64_t data_parallel_size,
                const std::vector<int64_t>& rampup, bool decreases, std::vector<UserError>& errors);

  // The step after so many consumed samples.
  int64_t asked_samples(int64_t consumed) const;  // by the ramp, before rounding
  int64_t num_microbatches(int64_t consumed) const { return asked_samples(consumed) / chunk_; }
  int64_t samples(int64_t consumed) const { return num_microbatches(consumed) * chunk_; }
  bool is_constant() const { return !rampup_; }

  // Length of a run of so many samples as Megatron-LM counts it: steps that start within the ramp, then whole batches.
  int64_t num_iterations(int64_t train_samples) const;
  // What the first steps of a run consume together.
  int64_t consumed_by(int64_t num_iterations) const;

 private:
  int64_t global_ = 1;
  int64_t chunk_ = 1;  // samples of one microbatch of all data-parallel ranks
  std::optional<BatchRampup> rampup_;
};

}  // namespace megalith
