// States of Megatron's model-parallel ranks, put together: parameters that they cut, the distributed optimizer's
// buffers of weights and moments.
//
// A rank has a buffer for each of its model chunks; experts that are divided over ranks have buffers, and an optimizer,
// of their own. A buffer has the parameters in the reverse order of their modules, each beginning at a multiple of 64,
// in buckets, whose padding at the end is not stored. A bucket is full with `bucket_size` elements, if there is such a
// limit; a table that the first and the last stage share has a bucket of its own.
// Source: megatron-core 0.16, core/distributed/param_and_grad_buffer.py, core/optimizer/distrib_optimizer.py.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "foreign/foreign_tensor.h"
#include "foreign/megatron_names.h"

namespace megalith {

// A tensor of a rank, in boxes of it.
struct RankPart {
  std::vector<int64_t> shape;
  std::vector<ForeignTensor::Shard> shards;

  static RankPart whole(const FileTensor& stored);
};

// A tensor of all tensor-parallel ranks. parts: in their order, at least one. UserError if their shapes do not fit.
ForeignTensor joined(const std::string& name, std::span<const RankPart* const> parts, const MegatronCut& cut);

// The rows of a fused projection of heads (query_key_value, a T5's key_value), by the version of a checkpoint.
enum class HeadOrder {
  kMatrixFirst,  // 0: all queries, all keys, all values
  kInterleaved,  // 1: by head; row m i + j of it is row i of matrix j, of m
  kHeadFirst,    // from 2 on: by head, its matrices one after another
};
// checkpoint_version of a rank's file. UserError for one that Megatron-LM did not have.
HeadOrder head_order(const TorchArchive& archive);
// Matrices of a projection that had another order before; 0 for other tensors.
int64_t matrices_of_heads(std::string_view name);
// A whole tensor by head. UserError if its rows are not those of so many heads. Source: Megatron-LM,
// megatron/checkpointing.py (fix_query_key_value_ordering).
ForeignTensor by_head(const ForeignTensor& tensor, int64_t num_heads, int64_t num_matrices, HeadOrder order);

struct RankParameter {
  std::string name;            // in the whole model
  std::vector<int64_t> shape;  // of this rank
  bool is_shared_table = false;
};
// A list for each of a rank's model chunks, in the order of their modules.
using RankChunks = std::vector<std::vector<RankParameter>>;

// States of a rank's parameters, by key and name.
using RankStates = std::map<std::string, std::map<std::string, RankPart>>;

// How Megatron's args cut buffers into buckets.
struct BucketRule {
  std::optional<int64_t> size;  // of the first chunk of the first stage
};
BucketRule bucket_rule(const PickleValue& args);

// The elements of a buffer as states of its parameters. buckets: of one key, in order, without padding; vectors.
// UserError if they are not as long as these parameters.
void take_buckets(std::span<const RankParameter> parameters, std::span<const ForeignTensor> buckets,
                  const std::string& where, std::map<std::string, RankPart>& states);

// Buffers as the distributed optimizer gathers them: {buffer: {dtypes: {"param", "exp_avg", "exp_avg_sq"}}}. Names of
// states that are not read are added to `unknown`. UserError for other forms.
RankStates gathered_states(const TorchArchive& archive, const PickleValue& buffers, const RankChunks& chunks,
                           const BucketRule& rule, std::set<std::string>& unknown);

// Megatron-LM's sizes of groups. Those of experts' tensor parallelism are the others' unless given.
struct MegatronSizes {
  int64_t tp = 1, pp = 1, vp = 1, ep = 1, etp = 1;

  // Ranks of a stage before combinations of these groups repeat.
  int64_t num_ranks() const;
  int64_t tp_of(int64_t rank) const { return rank % tp; }
  int64_t ep_of(int64_t rank) const { return rank / etp % ep; }
  int64_t etp_of(int64_t rank) const { return rank % etp; }
  // Experts with an optimizer of their own.
  bool has_expert_optimizer() const { return ep > 1; }
};
MegatronSizes megatron_sizes(const PickleValue& args);

// A parameter of an expert that is divided over ranks.
bool is_of_expert(std::string_view name);

}  // namespace megalith
