// The commit that the program was built of, for run.json and whoever asks which program this is; "unknown" where the
// source is no git repository. The build writes its definition (cmake/build_commit.cmake).
#pragma once

#include <fmt/format.h>

#include <string>

#include "cli/command.h"

namespace megalith {

extern const char* const kBuildCommit;

// "megalith 0.1.0 (commit 0123456789ab)"
inline std::string program_text() { return fmt::format("megalith {} (commit {})", kProgramVersion, kBuildCommit); }

}  // namespace megalith
