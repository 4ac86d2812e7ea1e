// Fine-tuning in AMD's benchmarks: what the flags and variables of its script become, and what it trains on.
#pragma once

#include "compat/launch_plan.h"
#include "compat/script_values.h"

namespace megalith {

// Sizes, data, learning rate and adapters of -t finetune_fw, finetune_lora, finetune_qlora and HF_finetune_lora, for a
// plan whose benchmark and preset are chosen.
void plan_finetuning(const BenchmarkModel& model, const ScriptValues& values, LaunchPlan& plan);

}  // namespace megalith
