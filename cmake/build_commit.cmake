# Writes OUTPUT, a C++ file with the commit of the repository in SOURCE; run by cmake -P when there is a new commit.
set(commit "unknown")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${SOURCE}" rev-parse --short=12 HEAD
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed EQUAL 0)
    set(commit "${found}")
  endif()
endif()
file(WRITE "${OUTPUT}"
  "#include \"cli/build_commit.h\"\n\nnamespace megalith {\n\nconst char* const kBuildCommit = \"${commit}\";\n\n}  // namespace megalith\n")
