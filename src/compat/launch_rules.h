// Rules for variables that do not map to one option (compat/variable.h, kOptions).
#pragma once

#include "compat/launch_plan.h"
#include "compat/script_values.h"

namespace megalith {

// Options of ROCm's scripts: the model, the table's own, and the rules between variables.
void plan_rocm_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

// Options of Primus, whose experiment file defines the run.
void plan_primus_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

// Options of Stanford's scripts: a model of one size, its files, and where it is saved.
void plan_stanford_options(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

void plan_ranks(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

void plan_log(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

void plan_exports(const ScriptValues& values, const LaunchInputs& inputs, LaunchPlan& plan);

}  // namespace megalith
