// CVS's verdict on a run: a list of findings with what was expected and what was found.
//
//   configuration   the case, its precision, options of the run that differ from it
//   containers      the steps of a launch (cvs_launch.h)
//   communication   nodes x devices ranks, on every axis
//   convergence     the loss falls, and nothing is NaN or infinite
//   performance     means of speed and memory against result_dict
//   results         all iterations are done, the program ended well, no phrase of a failure in the logs
//
// A run passes when no finding is an error. Everything here is a pure function of what was read before.
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

// One run as it is judged.
struct CvsRun {
  std::string name;          // of its first log or its folder
  std::vector<CvsLog> logs;  // one a node that wrote one; the iterations stand in the one that has most
  std::optional<RunStart> record;
  std::optional<std::string> kernel_log;  // "TIME TEXT" lines of while it ran; nothing when it may not be read
  CvsFindings launch;                     // what starting it found

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

// UserErrors when the log is that of another run than the case describes, or is cut. A run that was launched here and
// did not come to train has a verdict of its launch.
CvsVerdict judge_cvs_run(const CvsCase& of, const CvsRun& run, const CvsJudgeOptions& options);

// The parts, for tests.
CvsFindings judge_communication(const CvsCase& of, const CvsRun& run, const CvsJudgeOptions& options);
CvsFindings judge_convergence(const std::vector<CvsStep>& steps);
CvsFindings judge_performance(const CvsCase& of, const std::vector<CvsStep>& steps, const CvsJudgeOptions& options);
CvsFindings judge_as_upstream(const CvsCase& of, const CvsLog& log);
CvsFindings judge_results(const CvsCase& of, const CvsRun& run);
CvsFindings judge_kernel_log(const std::optional<std::string>& kernel_log);

}  // namespace megalith
