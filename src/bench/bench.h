// Topics of `megalith bench`: how fast the operators and the training step run on this machine. Each is one file.
#pragma once

#include "cli/command.h"

namespace megalith {

// Forward and both gradients of linear layers: a model's, or given shapes.
int bench_gemm(CommandContext& context);
CommandOptions bench_gemm_options();

// Attention forward and backward, beside PyTorch's.
int bench_attention(CommandContext& context);
CommandOptions bench_attention_options();

// Every operator of src/ops, forward and backward.
int bench_ops(CommandContext& context);
CommandOptions bench_ops_options();

// The experts of a layer, beside a dense MLP of the same active work.
int bench_moe(CommandContext& context);
CommandOptions bench_moe_options();

// What overlap hides of communication, on ranks as threads with a modelled network.
int bench_overlap(CommandContext& context);
CommandOptions bench_overlap_options();

// Whole training steps.
int bench_train(CommandContext& context);
CommandOptions bench_train_options();

}  // namespace megalith
