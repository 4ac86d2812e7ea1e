// CVS's verdict on a run: findings, each with what was expected and found.
//
//   configuration   the case, its precision, options of the run that differ from it
//   containers      the steps of a launch (cvs_launch.h)
//   communication   nodes x devices ranks, on every axis
//   convergence     the loss falls, and nothing is NaN or infinite
//   performance     means of speed and memory against result_dict
//   results         all iterations are done, the program ended well, no phrase of a failure in the logs
//
// A run passes if no finding is an error. All pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compat/cvs_case.h"
#include "compat/cvs_log.h"
#include "core/finding.h"
#include "train/run_record.h"

namespace megalith {

struct CvsFinding {
  std::string topic, check;
  FindingLevel level = FindingLevel::kOk;
  std::string found, expected, remedy;
};

using CvsFindings = std::vector<CvsFinding>;

struct CvsRun {
  std::string name;          // of its first log or its folder
  std::vector<CvsLog> logs;  // one per node that wrote one; iterations come from the one that has most
  std::optional<RunStart> record;
  std::optional<std::string> kernel_log;  // "TIME TEXT" lines during the run; nothing if unreadable
  CvsFindings launch;                     // findings from starting it

  bool has_steps() const;
  const CvsLog& main_log() const;
};

struct CvsJudgeOptions {
  int64_t devices_per_node = 8;
  bool as_upstream = false;  // --compare cvs
};

struct CvsVerdict {
  std::string run;
  CvsCase of;
  CvsFindings findings;
  std::vector<CvsStep> steps;  // for pictures

  bool is_passed() const;
};

// UserErrors if the log is truncated or of another run than the case describes. A run launched here that never reached
// training has a verdict of its launch.
CvsVerdict judge_cvs_run(const CvsCase& of, const CvsRun& run, const CvsJudgeOptions& options);

// The parts, for tests.
CvsFindings judge_communication(const CvsCase& of, const CvsRun& run, const CvsJudgeOptions& options);
CvsFindings judge_convergence(const std::vector<CvsStep>& steps, const CvsCase& of = {});
CvsFindings judge_performance(const CvsCase& of, const std::vector<CvsStep>& steps, const CvsJudgeOptions& options);
CvsFindings judge_as_upstream(const CvsCase& of, const CvsLog& log);
CvsFindings judge_results(const CvsCase& of, const CvsRun& run);
CvsFindings judge_kernel_log(const std::optional<std::string>& kernel_log);

}  // namespace megalith
