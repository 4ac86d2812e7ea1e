// A step's samples: the global batch, constant, ramping up or in given steps, in whole microbatches of all
// data-parallel ranks.
//
//   ramp-up (start, increment, samples), with per = samples / ((global - start) / increment):
//     consumed > samples: global;  else start + increment * floor(consumed / per)
//   given steps: the size of the last one that begins at or before consumed
// A function of samples consumed: resuming needs no state. decrease_batch_size_if_needed rounds sizes down to multiples
// of micro_batch_size times the data-parallel size, counting skipped samples.
// Source: Megatron-LM megatron/core/num_microbatches_calculator.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"

namespace megalith {

struct BatchRampup {
  int64_t start = 1, increment = 1, samples = 0;
};

struct BatchStep {
  int64_t from = 0;     // consumed samples
  int64_t samples = 1;  // of the global batch from there on
};

// "0:768 250B:1536": from so many tokens on, of seq_length each sample (0: samples), so many samples a step. K, M, B and
// T are powers of a thousand. Adds what is wrong to errors.
std::vector<BatchStep> parse_batch_steps(const std::string& text, int64_t seq_length, std::vector<UserError>& errors);

class BatchSchedule {
 public:
  BatchSchedule() = default;
  // rampup     three numbers, or empty for a constant size
  // steps      of parse_batch_steps, the last one's samples being the global batch size; without a ramp
  // decreases  decrease_batch_size_if_needed
  // Adds conflicts to errors, and is then constant.
  BatchSchedule(int64_t global_batch_size, int64_t micro_batch_size, int64_t data_parallel_size,
                const std::vector<int64_t>& rampup, bool decreases, std::vector<UserError>& errors,
                std::vector<BatchStep> steps = {});

  int64_t asked_samples(int64_t consumed) const;  // by the ramp, unrounded
  int64_t num_microbatches(int64_t consumed) const { return asked_samples(consumed) / chunk_; }
  int64_t samples(int64_t consumed) const { return num_microbatches(consumed) * chunk_; }
  bool is_constant() const { return !rampup_ && steps_.empty(); }
  const std::vector<BatchStep>& steps() const { return steps_; }

  // The steps of a run of this many samples, as Megatron-LM counts: steps that start within the ramp, then whole
  // batches; with given steps, all that start before its end.
  int64_t num_iterations(int64_t train_samples) const;
  int64_t consumed_by(int64_t num_iterations) const;

 private:
  int64_t global_ = 1;
  int64_t chunk_ = 1;  // samples of one microbatch of all data-parallel ranks
  std::optional<BatchRampup> rampup_;
  std::vector<BatchStep> steps_;
};

}  // namespace megalith
