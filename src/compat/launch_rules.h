// What variables mean together: the rows of the table that one option does not say (compat/variable.h, kOptions).
#pragma once

#include "compat/launch_plan.h"
#include "compat/script_values.h"

namespace megalith {

// The options of ROCm's scripts: the model, what the table says by itself, and the rules between variables.
void plan_rocm_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

// Primus's: the experiment file says what is trained.
void plan_primus_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

// Stanford's: a model of one size, its files, and where it is saved.
void plan_stanford_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

// How many processes run where.
void plan_ranks(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

// The log's file.
void plan_log(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

// Variables of the processes.
void plan_exports(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

}  // namespace megalith
