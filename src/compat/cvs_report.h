// Verdicts (cvs_judge.h) as text, JSON, JUnit's XML for build servers, and a small web page.
#pragma once

#include <span>
#include <string>

#include "compat/cvs_judge.h"
#include "core/json.h"

namespace megalith {

std::string verdicts_text(std::span<const CvsVerdict> verdicts);

// {"is_passed", "runs": [{"run", "case", "is_passed", "findings": [{"topic", "check", "level", "found", "expected",
// "remedy"}]}]}
OrderedJson verdicts_json(std::span<const CvsVerdict> verdicts);

// A test suite per run, a test case per finding: errors fail, warnings are printed, findings shown but not judged are
// skipped.
//   timestamp  UTC, "2026-01-31T09:01:28"
std::string verdicts_junit(std::span<const CvsVerdict> verdicts, const std::string& timestamp);

std::string verdicts_page(std::span<const CvsVerdict> verdicts);

}  // namespace megalith
