// Today's files of CVS for training: one model, a sweep of its runs, and their thresholds in a file beside it.
//
//   {"schema_version": 1, "framework": "megatron_single", "enforce_thresholds": true, "threshold_json": "t.json",
//    "loss_curve": {…}, "scaling_baseline": {…}, "config": {…}, "model_params": {…}, "container": {…},
//    "sweep": {"combinations": {"NAME": {"micro_batch_size": "4", …}}, "runs": ["NAME"]}}
//   t.json: {"MBS=4,GBS=128,PRECISION=FP8": {"training.mem_usage": {"kind": "max", "value": 0.85}}}
//
// Source: ROCm/cvs of August 2026, cvs/lib/training/*/training_config_loader.py, cvs/lib/utils/verdict.py.
#pragma once

#include <string>
#include <string_view>

#include "compat/cvs_config.h"
#include "core/json.h"

namespace megalith {

// A row of config/dialects/cvs_suites.table.
struct CvsSuite {
  std::string name;
  std::string kind;            // megatron, torchtitan; rccl, ibperf, agfhc; refused
  std::string mode_or_reason;  // single_node, multi_node; why it is refused
};

// Null if the table has no such suite.
const CvsSuite* find_cvs_suite(std::string_view name);
// UserError for a refused suite.
void refuse_cvs_suite(const CvsSuite& suite, const std::string& file);

bool is_cvs_sweep(const Json& root);

// The same as a file of cases, MODE/MODEL/NAME for each of sweep.runs. Fills out.sweep, out.trainer and warnings.
Json cases_of_sweep(const Json& root, CvsConfig& out);

}  // namespace megalith
