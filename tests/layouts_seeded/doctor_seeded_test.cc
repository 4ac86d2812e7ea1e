// `megalith doctor --parallel` in a build with mistakes: unlike in the matrix, its one rank computes with them too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "layouts/doctor_cases.h"
#include "layouts_seeded/seeded.h"

namespace megalith {
namespace {

using namespace test;

class MistakeAtWork {
 public:
  explicit MistakeAtWork(int number) { seeded::g_mistake = number; }
  ~MistakeAtWork() { seeded::g_mistake = -1; }
};

TEST(DoctorParallel, FindsEveryMistakeOfItsOwnBuild) {
  std::vector<DoctorCase> users = doctor_cases();
  ASSERT_FALSE(seeded::kNames.empty());
  for (size_t number = 0; number < seeded::kNames.size(); ++number) {
    // One rank would compute with it too; the matrix, whose one rank does not, sees it.
    if (seeded::kNames[number].find("'s formula") != std::string::npos) continue;
    if (seeded::kNames[number].starts_with("eight bits")) continue;  // the doctor's toy sets fp8_format aside
    const MistakeAtWork at_work(static_cast<int>(number));
    std::string found;
    for (size_t i = 0; i < users.size() && found.empty(); ++i) {
      const ParallelReport report = users[i].fresh_check()->run_as_threads();
      if (report.is_ok()) continue;
      found = users[i].name + ": " + report.failure;
      // The next mistake is often of the same part: this one is tried first.
      std::rotate(users.begin(), users.begin() + static_cast<std::ptrdiff_t>(i),
                  users.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
    EXPECT_NE(found, "") << "no configuration shows: " << seeded::kNames[number];
    std::printf("  %s\n    %s\n", seeded::kNames[number].c_str(), found.substr(0, found.find('\n')).c_str());
  }
}

}  // namespace
}  // namespace megalith
