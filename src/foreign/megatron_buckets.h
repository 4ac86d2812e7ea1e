// The distributed optimizer's state by buffers and buckets in a torch_dist folder, the default of Megatron-LM since
// megatron-core 0.15: dp_reshardable, a tensor for each bucket, and dp_zero_gather_scatter, an object for each
// model-parallel rank. Their owners can change only the number of data-parallel ranks.
//
// Names say neither which parameters are in a bucket nor where. That follows from the sizes of groups and the order of
// megatron-core's modules: every bucket has to come out as long as it is.
// Source: megatron-core 0.16, core/optimizer/distrib_optimizer.py; core/transformer/{transformer_layer,attention,
// multi_latent_attention,mlp}.py, core/transformer/moe/moe_layer.py; Transformer Engine 2, module/layernorm_linear.py.
#pragma once

#include <string_view>

#include "foreign/dcp.h"
#include "foreign/foreign_source.h"

namespace megalith {

// "chained_1.optimizer.distributed.dp_group_idx_3.…".
bool is_in_buckets(std::string_view name);

// The value of a ShardedObject, which files have in a list.
const PickleValue& sharded_object(const TorchArchive& archive);

// UserError, which says what does not fit, where the order is not known.
void read_megatron_buckets(const DcpFolder& dcp, const TorchArchive& common, const CanonicalModel& model,
                           ForeignTensors& tensors);

}  // namespace megalith
