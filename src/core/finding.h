// The results of checks: level, what was found and what to do. Lists are shown as text or JSON; those of many ranks can
// be merged.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace megalith {

enum class FindingLevel {
  kOk,
  kNote,     // worth knowing; nothing to do
  kWarning,  // a run works, but slower than it could, or not for long
  kError,    // a run will not work
};

std::string_view name_of(FindingLevel level);  // "ok", "note", "warning", "error"

struct Finding {
  std::string topic;  // "shared memory": findings of a topic are printed together
  std::string check;  // "/dev/shm": unique in its topic, unless one check looks at several things
  FindingLevel level = FindingLevel::kOk;
  std::string found;   // one line
  std::string remedy;  // one line; empty if there is nothing to do

  bool operator==(const Finding&) const = default;
};

using Findings = std::vector<Finding>;

void append(Findings& all, Findings more);
int64_t count_level(std::span<const Finding> findings, FindingLevel level);

// A block per topic in order of appearance, a line per finding with its remedy below; counts at the end.
std::string findings_text(std::span<const Finding> findings);
std::string counts_text(std::span<const Finding> findings);  // "no errors, 2 warnings, 1 note"

// {"topics": {topic: [{"check", "level", "found", "remedy"}]}, "num_errors", "num_warnings", "num_notes", "level"}
OrderedJson findings_json(std::span<const Finding> findings);

// For sending a list between ranks. InternalError for any other text.
std::string pack_findings(std::span<const Finding> findings);
Findings unpack_findings(std::string_view text);

struct RankFindings {
  int rank = 0;
  std::string host;
  Findings findings;
};

// The warnings and errors of all ranks (in rank order), one per check and level. Its text is the lowest rank's, plus
// the ranks and hosts that share it: "/dev/shm is 64 MiB (3 of 4 ranks: host a rank 0-1, host b rank 2)".
Findings shared_findings(std::span<const RankFindings> ranks);

// "0-3, 7"; ascending numbers.
std::string ranges_text(const std::vector<int>& numbers);

}  // namespace megalith
