// Samples of unequal work, shared evenly. A step's samples, and so its loss and gradients, stay those of the data's
// order: only which rank computes a sample, and when, follows from the work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megalith {

// A step's samples dealt to dp_size ranks' microbatches of micro_batch_size samples: indices into `work`, by rank, then
// microbatch, then place in it. The size of `work` is a multiple of dp_size * micro_batch_size.
//
//   data parallelism      ranks have about the same work in all, and in each microbatch, at whose exchanges (experts,
//                         FSDP) they may meet
//   pipeline parallelism  neighbouring microbatches have about the same work; the first and the last ones, during which
//                         most ranks wait, have the least
std::vector<int64_t> balanced_shares(std::span<const double> work, int64_t dp_size, int64_t micro_batch_size);

// Pairs of a query and a key that each of cp_size ranks sees of a sequence of documents, under the zig-zag
// (comm/sequence_shard.h). The rest of the sequence is padding, a document of its own.
std::vector<double> pairs_of_context_ranks(std::span<const int64_t> documents, int64_t seq_length, int64_t cp_size);

// The order of a sequence's documents, as indices of `lengths`, whose pairs context-parallel ranks share best, whether
// 2, 4 or 8: the best one of a few.
std::vector<size_t> balanced_order(std::span<const int64_t> lengths, int64_t seq_length);

}  // namespace megalith
