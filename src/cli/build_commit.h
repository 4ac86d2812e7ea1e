// The commit that the program was built of, for run.json; "unknown" where the source is no git repository. The build
// writes its definition (cmake/build_commit.cmake).
#pragma once

namespace megalith {

extern const char* const kBuildCommit;

}  // namespace megalith
