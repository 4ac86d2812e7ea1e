// Topics of `megalith bench`: the speed of operators and training steps on this machine. One file each.
#pragma once

#include "cli/command.h"

namespace megalith {

// Forward and both gradients of linear layers: a model's, or given shapes.
int bench_gemm(CommandContext& context);
CommandOptions bench_gemm_options();

// Attention forward and backward, against PyTorch's.
int bench_attention(CommandContext& context);
CommandOptions bench_attention_options();

// Every operator of src/ops, forward and backward.
int bench_ops(CommandContext& context);
CommandOptions bench_ops_options();

// A layer's experts, against a dense MLP of the same active work.
int bench_moe(CommandContext& context);
CommandOptions bench_moe_options();

// Communication hidden by overlap, on ranks as threads with a modelled network.
int bench_overlap(CommandContext& context);
CommandOptions bench_overlap_options();

// Collectives of the launched ranks; all-gathers of every stride-th rank.
int bench_rccl(CommandContext& context);
CommandOptions bench_rccl_options();
int bench_strided(CommandContext& context);
CommandOptions bench_strided_options();

// Whole training steps.
int bench_train(CommandContext& context);
CommandOptions bench_train_options();

// Rates of this machine, as a file for `megalith plan --cluster`.
int bench_calibrate(CommandContext& context);
CommandOptions bench_calibrate_options();

}  // namespace megalith
