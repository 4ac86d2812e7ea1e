// Megatron-FSDP's fsdp_dtensor: a folder of torch.distributed.checkpoint, with every parameter whole under its name in
// the wrapped model, and what Megatron-LM keeps of the run as objects.
//
//   model.module.….decoder.layers.0.mlp.linear_fc1.weight_w   gate; weight_v: up
//   optimizer.state.module.….exp_avg, optimizer.param_to_group_meta.…, args, iteration, opt_param_scheduler.num_steps
//
// Source: megatron-core 0.16, core/transformer/fsdp_dtensor_checkpoint.py, core/optimizer/distrib_optimizer.py
// (sharded_param_state_fsdp_dtensor); Megatron-LM, training/checkpointing.py.
#pragma once

#include <filesystem>

#include "foreign/dcp.h"
#include "foreign/foreign_checkpoint.h"

namespace megalith {

bool is_fsdp_dtensor(const std::filesystem::path& folder);
// UserError without args.
ForeignRecord record_fsdp_dtensor(const std::filesystem::path& folder);
void read_fsdp_dtensor(const DcpFolder& dcp, const CanonicalModel& model, ForeignTensors& tensors);

}  // namespace megalith
