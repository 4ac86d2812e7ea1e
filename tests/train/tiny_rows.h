// Batches of the trainer from the inputs of naive models.
#pragma once

#include <ATen/ATen.h>

#include "data/batch.h"
#include "kinds/tasks.h"
#include "models/tiny_models.h"
#include "train/task.h"

namespace megalith::test {

// Rows [begin, begin + count) of `whole`, the first of which is sample `sample_index` of the run.
inline Batch tiny_rows(const NaiveInput& whole, int64_t begin, int64_t count, int64_t sample_index) {
  const auto cut = [&](const at::Tensor& tensor) { return tensor.narrow(0, begin, count).contiguous(); };
  Batch batch;
  batch.set(BatchField::of_tokens(field::kTokens, cut(whole.tokens)));
  batch.set(BatchField::of_tokens(field::kLabels, cut(whole.labels)));
  batch.set(BatchField::of_tokens(field::kLossWeights, cut(whole.loss_weights).to(at::kFloat)));
  batch.set(BatchField::of_tokens(field::kPositionIds, cut(whole.position_ids)));
  batch.set(BatchField::of_rows(field::kSampleIndex, at::arange(sample_index, sample_index + count, at::kLong)));
  return batch;
}

inline const Task& tiny_task() {
  static const std::unique_ptr<Task> task = make_task(TaskOptions{}, TaskSetup{});
  return *task;
}

}  // namespace megalith::test
