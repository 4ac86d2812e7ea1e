// The index of a trained biencoder: the vectors of all blocks of a data set, of which a question's nearest is to hold
// its answer.
//
// Blocks are those that training cuts (data/ict_samples.h), each once and whole, with its title. Source: Megatron-LM's
// megatron/indexer.py.
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
  at::Tensor vectors;  // (n, vector_size) fp32 on the CPU; row i is block i's
  at::Tensor samples;  // (n) int64: its sample in the source
  // (n, 3) int64: a block's document, its first sentence, one past its last; counted in the files
  at::Tensor places;
};

// The blocks of all documents that data_path names, in one pass; seq_length cuts them as in training. UserError for
// files without sentences or with other titles, and for a tokenizer without [CLS] and [SEP].
//   tokenizer  that the files were made with
std::unique_ptr<BatchSource> open_blocks(const Resolved& resolved, const Tokenizer& tokenizer, Logger& log);

// Reads `rows` blocks at a time through a Biencoder's encoder of texts. Data-parallel ranks share the blocks, and every
// rank gets all. on_batch is called with how many blocks all ranks have finished since the last call.
BlockIndex index_blocks(const BuiltModel& built, BatchSource& blocks, int64_t rows, const Groups& groups,
                        at::Device device, const std::function<void(int64_t)>& on_batch = {});

// The ids of each question, at least one -> (questions, vector_size) fp32 on the CPU, by the encoder of questions.
at::Tensor question_vectors(const BuiltModel& built, std::span<const std::vector<int32_t>> questions,
                            at::Device device);

// What a rank holds meanwhile.
MemoryMeasure estimate_block_vectors(int64_t rows, int64_t length);

// A block's text as it is read, behind its title.
std::string block_text(BatchSource& blocks, int64_t sample, const Tokenizer& tokenizer);

}  // namespace megalith
