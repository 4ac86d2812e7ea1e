// Folder of the tests' configurations and data: the sources that they were built from or, on another machine, the one
// that the environment's MEGALITH_SOURCE_DIR names.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace megalith::test {

inline std::filesystem::path source_dir() {
  const char* const named = std::getenv("MEGALITH_SOURCE_DIR");
  return named != nullptr ? named : MEGALITH_SOURCE_DIR;
}

}  // namespace megalith::test
