// Results of checks, as text or JSON; ranks' can be merged.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace megalith {

enum class FindingLevel {
  kOk,
  kNote,     // nothing to do
  kWarning,  // runs work, but slower, or not for long
  kError,    // runs fail
};

std::string_view name_of(FindingLevel level);  // "ok", "note", "warning", "error"

struct Finding {
  std::string topic;  // "shared memory": printed together
  std::string check;  // "/dev/shm": unique in its topic, unless a check looks at several things
  FindingLevel level = FindingLevel::kOk;
  std::string found;   // one line
  std::string remedy;  // one line; may be empty

  bool operator==(const Finding&) const = default;
};

using Findings = std::vector<Finding>;

void append(Findings& all, Findings more);
int64_t count_level(std::span<const Finding> findings, FindingLevel level);

// A block per topic; counts at the end.
std::string findings_text(std::span<const Finding> findings);
std::string counts_text(std::span<const Finding> findings);  // "no errors, 2 warnings, 1 note"

// {"topics": {topic: [{"check", "level", "found", "remedy"}]}, "num_errors", "num_warnings", "num_notes", "level"}
OrderedJson findings_json(std::span<const Finding> findings);

// Sends findings between ranks. InternalError for other text.
std::string pack_findings(std::span<const Finding> findings);
Findings unpack_findings(std::string_view text);

struct RankFindings {
  int rank = 0;
  std::string host;
  Findings findings;
};

// All ranks' warnings and errors in rank order, one per check and level: the lowest rank's text, and who shares it:
// "/dev/shm is 64 MiB (3 of 4 ranks: host a rank 0-1, host b rank 2)".
Findings shared_findings(std::span<const RankFindings> ranks);

// "0-3, 7"; `numbers` ascend.
std::string ranges_text(const std::vector<int>& numbers);

}  // namespace megalith
