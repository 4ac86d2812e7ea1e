// A trained biencoder's index: vectors of a data set's blocks, for finding those nearest to a question. Blocks are
// those of training (ict_samples.h), each once, whole and with its title. Source: Megatron-LM's megatron/indexer.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "core/log.h"
#include "data/batch_source.h"
#include "train/memory_check.h"
#include "train/setup.h"

namespace megalith {

struct BlockIndex {
  at::Tensor vectors;  // (n, vector_size) fp32 on the CPU
  at::Tensor samples;  // (n) int64: the block's sample in the source
  // (n, 3) int64: a block's document, first sentence and one past its last, as numbered in the files.
  at::Tensor places;
};

// All blocks of data_path's documents, in one pass, cut by seq_length as in training. UserError for files without
// sentences, mismatched titles, and a tokenizer without [CLS] and [SEP].
//   tokenizer  that made the files
std::unique_ptr<BatchSource> open_blocks(const Resolved& resolved, const Tokenizer& tokenizer, Logger& log);

// Encodes `rows` blocks at a time with a Biencoder's text encoder. Data-parallel ranks share the work, and every rank
// gets all vectors. on_batch receives the number of blocks that all ranks finished since the last call.
BlockIndex index_blocks(const BuiltModel& built, BatchSource& blocks, int64_t rows, const Groups& groups,
                        at::Device device, const std::function<void(int64_t)>& on_batch = {});

// Each question's ids, at least one -> (questions, vector_size) fp32 on the CPU, by the question encoder.
at::Tensor question_vectors(const BuiltModel& built, std::span<const std::vector<int32_t>> questions,
                            at::Device device);

// A rank's memory meanwhile.
MemoryMeasure estimate_block_vectors(int64_t rows, int64_t length);

// A block's text, preceded by its title.
std::string block_text(BatchSource& blocks, int64_t sample, const Tokenizer& tokenizer);

}  // namespace megalith
