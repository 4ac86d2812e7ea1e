// docs/gpu.md says of every operator what runs on a GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "ops/operators.h"

namespace megalith {
namespace {

TEST(OperatorsPage, SaysWhatRunsOnAGpu) {
  const auto operators = ops::list_operators(at::Device(at::kPrivateUse1, 0));
  const auto is_own = [](const ops::OperatorOrigin& one) { return one.origin == ops::Origin::kOwnKernel; };
  if (std::ranges::none_of(operators, is_own)) GTEST_SKIP() << "this build has no emulation of GPU kernels";
  std::string rows;
  for (const ops::OperatorOrigin& one : operators) {
    rows += fmt::format("| `{}` | {} |\n", one.name, ops::name_of(one.origin));
  }

  // The page with these rows in the place of its own.
  std::ifstream file(MEGALITH_SOURCE_DIR "/docs/gpu.md");
  std::string page, wanted;
  bool has_rows = false;
  for (std::string line; std::getline(file, line);) {
    page += line + "\n";
    if (line.rfind("| `", 0) != 0) {
      wanted += line + "\n";
    } else if (!has_rows) {
      has_rows = true;
      wanted += rows;
    }
  }
  EXPECT_TRUE(has_rows);
  if (page == wanted) return;
  std::ofstream(MEGALITH_BINARY_DIR "/gpu.md") << wanted;
  FAIL() << "docs/gpu.md is out of date: copy build/gpu.md to it. Its rows should be\n" << rows;
}

}  // namespace
}  // namespace megalith
