// The commit the program was built from, for run.json and version messages; "unknown" outside a git repository. Defined
// by the build (cmake/build_commit.cmake).
#pragma once

#include <fmt/format.h>

#include <string>

#include "cli/command.h"

namespace megalith {

extern const char* const kBuildCommit;

// "megalith 0.1.0 (commit 0123456789ab)"
inline std::string program_text() { return fmt::format("megalith {} (commit {})", kProgramVersion, kBuildCommit); }

}  // namespace megalith
