#include "kinds/retrieval/block_vectors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/strings.h"
#include "kinds/encoder/text_vectors.h"
#include "kinds/retrieval/ict_samples.h"
#include "kinds/tasks.h"
#include "models/biencoder.h"
#include "tokenizer/tokenizer.h"
#include "train/inference_memory.h"

namespace megalith {
namespace {

Biencoder& biencoder_of(const BuiltModel& built) {
  auto* model = dynamic_cast<Biencoder*>(built.chunks.at(0).get());
  MEGALITH_CHECK(model != nullptr, "an index by another model than a biencoder");
  return *model;
}

at::Tensor vectors_of(const BuiltModel& built, Biencoder::Side side, const PaddedTexts& texts, at::Device device) {
  const ModelInput input = input_of_texts(texts, /*has_encoder=*/false, device);
  return biencoder_of(built).vectors(side, input.tokens, input.context).to(at::kFloat).to(at::kCPU);
}

// A batch's blocks without common padding.
PaddedTexts texts_of(const Batch& batch) {
  const at::Tensor& lengths = batch.at(field::kKeyLengths);
  return {.tokens = batch.at(field::kTokens).narrow(1, 0, lengths.max().item<int64_t>()).contiguous(),
          .lengths = lengths};
}

}  // namespace

std::unique_ptr<BatchSource> open_blocks(const Resolved& resolved, const Tokenizer& tokenizer, Logger& log) {
  TaskSetup setup = make_task_setup(resolved);
  setup.tokenizer = &tokenizer;
  setup.special_ids = tokenizer.special_ids();
  TaskOptions options = resolved.config.task;
  options.task = TaskKind::kIct;
  options.query_in_block_prob = 1;  // blocks stay whole
  DataOptions data = resolved.derived.data;
  data.split = "1,0,0";
  DataSetup needs{.sequence_length = resolved.derived.seq_length,
                  .seed = static_cast<uint32_t>(resolved.config.train.seed),
                  .vocab_size = resolved.derived.vocab_size};
  needs.num_samples = {std::nullopt, 0, 0};
  DataSets sets = make_task(options, setup)->open_data(data, needs, log);
  MEGALITH_CHECK(sets.train != nullptr, "no blocks in {}", join(data.data_path, " "));
  return std::move(sets.train);
}

BlockIndex index_blocks(const BuiltModel& built, BatchSource& blocks, int64_t rows, const Groups& groups,
                        at::Device device, const std::function<void(int64_t)>& on_batch) {
  const at::NoGradGuard no_grad;
  const int64_t n = blocks.num_samples(), dp = groups.dp->size();
  const at::Tensor vectors = at::zeros({n, built.config().vector_size()}, at::kFloat);
  const at::Tensor samples = at::zeros({n}, at::kLong), places = at::zeros({n, 3}, at::kLong);
  for (int64_t begin = 0; begin < n; begin += rows * dp) {
    const int64_t first = begin + rows * groups.dp->rank(), count = std::min(rows, n - first);
    if (count > 0) {
      const Batch batch = blocks.read({.consumed_samples = first, .micro_batch_size = count});
      // First and last sentence, document, block number.
      const at::Tensor block = batch.at(field::kBlock);
      const at::Tensor row = block.select(1, 3);
      vectors.index_copy_(0, row, vectors_of(built, Biencoder::Side::kContext, texts_of(batch), device));
      samples.index_copy_(0, row, at::arange(first, first + count, at::kLong));
      places.index_copy_(0, row, at::stack({block.select(1, 2), block.select(1, 0), block.select(1, 1)}, 1));
    }
    if (on_batch) on_batch(std::min(rows * dp, n - begin));
  }
  if (dp == 1) return {vectors, samples, places};
  // Each row is one rank's, and zero elsewhere.
  const auto summed = [&](const at::Tensor& own, const char* what) {
    const at::Tensor there = own.to(groups.dp->device());
    groups.dp->all_reduce(there, ReduceOp::kSum, what).wait();
    return there.to(at::kCPU);
  };
  return {summed(vectors, "vectors of blocks"), summed(samples, "samples of blocks"),
          summed(places, "places of blocks")};
}

at::Tensor question_vectors(const BuiltModel& built, std::span<const std::vector<int32_t>> questions,
                            at::Device device) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> rows(questions.size());
  std::iota(rows.begin(), rows.end(), 0);
  return vectors_of(built, Biencoder::Side::kQuery, padded_texts(questions, rows), device);
}

MemoryMeasure estimate_block_vectors(int64_t rows, int64_t length) {
  return [=](const Resolved& resolved, int rank) {
    return estimate_inference(resolved, rank, {.rows = rows, .length = length, .head = HeadOutput::kLoss});
  };
}

std::string block_text(BatchSource& blocks, int64_t sample, const Tokenizer& tokenizer) {
  const Batch batch = blocks.read({.consumed_samples = sample});
  const at::Tensor tokens = texts_of(batch).tokens.to(at::kInt);
  const auto* id = tokens.const_data_ptr<int32_t>();
  return tokenizer.decode({id, static_cast<size_t>(tokens.size(1))}, /*skip_special=*/true);
}

}  // namespace megalith
