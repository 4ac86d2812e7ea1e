// Reports of CVS's suites that do not train, judged by their file's thresholds: rccl-tests' JSON (or what it printed),
// perftest's output, and AGFHC's output or results.json. Running these tests is CVS's.
//
// Source: ROCm/cvs of August 2026, cvs/lib/rccl_lib.py, cvs/schema/rccl.py, cvs/lib/ibperf_lib.py,
// cvs/tests/health/*agfhc*.py.
#pragma once

#include <span>
#include <string>

#include "compat/cvs_judge.h"
#include "compat/cvs_sweep.h"
#include "core/json.h"

namespace megalith {

// The suite that the file is of, by its object; null for files of training. UserError for a suite that is refused.
const CvsSuite* suite_of_file(const Json& root, const std::string& file);

// One verdict on all reports. UserError for a report that is none of this suite.
CvsVerdict judge_cvs_suite(const CvsSuite& suite, const Json& root, const std::string& file,
                           std::span<const std::string> reports);

}  // namespace megalith
