// What a check has to say: a finding with a level, what was found and what to do. Lists of them as text and as JSON,
// and those of many ranks put together.
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
  std::string remedy;  // one line; empty when there is nothing to do

  bool operator==(const Finding&) const = default;
};

using Findings = std::vector<Finding>;

void append(Findings& all, Findings more);
int64_t count_level(std::span<const Finding> findings, FindingLevel level);

// A block a topic in order of appearance, a line a finding with the remedy below it, and a line of counts at the end.
std::string findings_text(std::span<const Finding> findings);
std::string counts_text(std::span<const Finding> findings);  // "no errors, 2 warnings, 1 note"

// {"topics": {topic: [{"check", "level", "found", "remedy"}]}, "num_errors", "num_warnings", "num_notes", "level"}
OrderedJson findings_json(std::span<const Finding> findings);

// A list as it travels between ranks, and back. InternalError for a text that is none.
std::string pack_findings(std::span<const Finding> findings);
Findings unpack_findings(std::string_view text);

struct RankFindings {
  int rank = 0;
  std::string host;
  Findings findings;
};

// The findings that are warnings and errors on any rank, one for each check and level, in the words of the lowest rank
// that has it, with the ranks and hosts that share it: "/dev/shm is 64 MiB (3 of 4 ranks: host a rank 0-1, host b rank
// 2)". ranks  in rank order
Findings shared_findings(std::span<const RankFindings> ranks);

// "0-3, 7"; ascending numbers.
std::string ranges_text(const std::vector<int>& numbers);

}  // namespace megalith
