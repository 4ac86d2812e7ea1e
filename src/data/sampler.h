// Samplers: which samples a data-parallel rank reads at a point of the run. Stateless in the run's position: any
// position is found in constant time (cyclic: after one permutation an epoch), so resuming replays nothing.
//
//   single             sample g of the training is sample g of the data set
//   cyclic             Megatron's order: an epoch is the microbatches that all ranks can fill, and each rank shuffles a
//                      part of the data. The order depends on micro_batch_size and the number of ranks.
//   cyclic, unsharded  place g of the training, over n samples, is place g % n of a permutation that only g / n
//                      decides. The order knows of no layout; it is Megatron's where a microbatch of all ranks divides
//                      n. (Megatron permutes the samples of whole microbatches, and drops what all ranks cannot fill.)
//
// Source of Megatron's: megatron/legacy/data/data_samplers.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

enum class DataloaderType { kSingle, kCyclic };

// Where the run is, and which part of it a rank reads.
struct DataPosition {
  int64_t consumed_samples = 0;  // of the whole run, before this microbatch of all data-parallel ranks
  int64_t micro_batch_size = 1;
  int64_t dp_rank = 0, dp_size = 1;
  bool operator==(const DataPosition&) const = default;
};

struct SampleRow {
  int64_t sample = 0;    // which sample of the data set
  int64_t in_order = 0;  // its place in the order of training: Batch::sample_index
  bool operator==(const SampleRow&) const = default;
};

class Sampler {
 public:
  // data_sharding  cyclic only: each data-parallel rank keeps to its own part of the data; without it all ranks draw
  //                from one permutation of all samples.
  // name           of the data set, for messages
  Sampler(DataloaderType type, int64_t num_samples, bool data_sharding, std::string name);

  // The micro_batch_size rows of the microbatch at this position. UserError when a single pass is used up, when there
  // are no samples, and with sharded data also when there is less than one microbatch for each rank, or when the
  // position is not a whole number of microbatches of all ranks.
  std::vector<SampleRow> rows(const DataPosition& position);

 private:
  std::vector<SampleRow> single_rows(const DataPosition& position) const;
  std::vector<SampleRow> sharded_rows(const DataPosition& position);
  std::vector<SampleRow> shuffled_rows(const DataPosition& position);
  const std::vector<int64_t>& permutation(int64_t epoch, int64_t size);

  DataloaderType type_;
  int64_t num_samples_;
  bool data_sharding_;
  std::string name_;
  std::vector<int64_t> permutation_;  // of permutation_epoch_, for cyclic
  int64_t permutation_epoch_ = -1;
};

}  // namespace megalith
