// docs/gpu.md says of every operator what runs on a GPU, and what is known of it there.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ops/operators.h"

namespace megalith {
namespace {

const std::filesystem::path kSource = MEGALITH_SOURCE_DIR;

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Architectures that nvcc compiles all kernels for: the head of the table of their registers, "#   sm_80   sm_90 …".
std::string nvidia_architectures() {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(kSource / "tests/gpu_kernels/registers.txt")) {
    if (line.find(" sm_") == std::string::npos) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.rfind("sm_", 0) == 0) found.push_back(word);
    }
    break;
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

// Architectures that hipcc compiles them for: the default of scripts/gpu/hip_kernels.sh, or "" if it is not found.
std::string amd_architectures() {
  const std::regex wanted(R"(HIP_ARCHITECTURES:-([a-z0-9 ]+)\})");
  for (const std::string& line : lines_of(kSource / "scripts/gpu/hip_kernels.sh")) {
    std::smatch match;
    if (std::regex_search(line, match, wanted)) return std::regex_replace(match[1].str(), std::regex(" "), ", ");
  }
  return {};
}

// Operator -> what the page says of its runs on a GPU, its last column. People write it.
std::map<std::string, std::string> runs_on_a_gpu(const std::vector<std::string>& page) {
  const std::regex row(R"(\| `(\w+)` \| (?:own kernel|LibTorch|reference) \| [^|]+ \| [^|]+ \| ([^|]+) \|)");
  std::map<std::string, std::string> runs;
  for (const std::string& line : page) {
    std::smatch match;
    if (std::regex_match(line, match, row)) runs[match[1]] = match[2];
  }
  return runs;
}

TEST(OperatorsPage, SaysWhatRunsOnAGpu) {
  const auto operators = ops::list_operators(at::Device(at::kPrivateUse1, 0));
  const auto is_own = [](const ops::OperatorOrigin& one) { return one.origin == ops::Origin::kOwnKernel; };
  if (std::ranges::none_of(operators, is_own)) GTEST_SKIP() << "this build has no emulation of GPU kernels";
  const std::vector<std::string> page = lines_of(kSource / "docs/gpu.md");
  const std::string compiled = nvidia_architectures() + "; " + amd_architectures();
  std::map<std::string, std::string> runs = runs_on_a_gpu(page);
  std::string rows;
  for (const ops::OperatorOrigin& one : operators) {
    const std::string run = runs.try_emplace(one.name, "not yet").first->second;
    rows += fmt::format("| `{}` | {} | {} | {} | {} |\n", one.name, ops::name_of(one.origin),
                        is_own(one) ? "yes" : "no kernel", is_own(one) ? compiled : "no kernel", run);
  }

  // The page with these rows instead of its own.
  std::string found, wanted;
  bool has_rows = false;
  for (const std::string& line : page) {
    found += line + "\n";
    if (line.rfind("| `", 0) != 0 || runs.count(line.substr(3, line.find('`', 3) - 3)) == 0) {
      wanted += line + "\n";
    } else if (!has_rows) {
      has_rows = true;
      wanted += rows;
    }
  }
  EXPECT_TRUE(has_rows);
  if (found == wanted) return;
  std::ofstream(MEGALITH_BINARY_DIR "/gpu.md") << wanted;
  FAIL() << "docs/gpu.md is out of date: copy build/gpu.md to it. Its rows should be\n" << rows;
}

// "not yet", or chip and day: "H200, 2027-03-01".
TEST(OperatorsPage, SaysWhereAndWhenAnOperatorRan) {
  const std::regex run(R"(not yet|[A-Z]\w+, 20\d\d-\d\d-\d\d)");
  const auto runs = runs_on_a_gpu(lines_of(kSource / "docs/gpu.md"));
  EXPECT_FALSE(runs.empty());
  for (const auto& [name, text] : runs) EXPECT_TRUE(std::regex_match(text, run)) << name << ": " << text;
}

// So "emulated" and "compiled for" hold for every kernel: the emulation's programs and hip_kernels.sh take all gpu.cu
// files, and the table of registers has them.
TEST(OperatorsPage, TheTableOfRegistersHasEveryKernelFile) {
  std::set<std::string> measured, wanted;
  for (const std::string& line : lines_of(kSource / "tests/gpu_kernels/registers.txt")) {
    if (line.rfind('#', 0) != 0) measured.insert(line.substr(0, line.find(':')));
  }
  for (const auto& folder : std::filesystem::directory_iterator(kSource / "src/ops")) {
    if (std::filesystem::exists(folder.path() / "gpu.cu")) wanted.insert(folder.path().filename().string());
  }
  EXPECT_EQ(measured, wanted) << "scripts/gpu/registers.py write nvcc . writes it anew";
}

}  // namespace
}  // namespace megalith
