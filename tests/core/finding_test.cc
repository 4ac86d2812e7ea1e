// Findings: text, JSON, and those of several ranks put together.
#include "core/finding.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace megalith {
namespace {

const Finding kShm{"shared memory", "/dev/shm", FindingLevel::kWarning, "64 MiB", "start with --shm-size 16g"};
const Finding kDisk{"disk", "save", FindingLevel::kError, "x cannot be written", "choose another"};
const Finding kFine{"disk", "TMPDIR", FindingLevel::kOk, "fine", ""};

TEST(Finding, TextGroupsByTopicAndAligns) {
  const Findings findings = {kDisk, kShm, kFine};
  EXPECT_EQ(findings_text(findings),
            "disk\n"
            "  error    save      x cannot be written\n"
            "                     -> choose another\n"
            "  ok       TMPDIR    fine\n"
            "shared memory\n"
            "  warning  /dev/shm  64 MiB\n"
            "                     -> start with --shm-size 16g\n"
            "1 error, 1 warning, no notes\n");
}

TEST(Finding, JsonHasEveryTopicOnceAndTheWorstLevel) {
  const OrderedJson object = findings_json(Findings{kDisk, kShm, kFine});
  EXPECT_EQ(object["level"], "error");
  EXPECT_EQ(object["num_errors"], 1);
  EXPECT_EQ(object["num_notes"], 0);
  ASSERT_EQ(object["topics"].size(), 2u);
  ASSERT_EQ(object["topics"]["disk"].size(), 2u);
  EXPECT_EQ(object["topics"]["disk"][1]["check"], "TMPDIR");
  EXPECT_EQ(object["topics"]["shared memory"][0]["remedy"], "start with --shm-size 16g");
  EXPECT_EQ(findings_json(Findings{})["level"], "ok");
}

TEST(Finding, PackedAndUnpackedIsTheSame) {
  const Findings findings = {kDisk, {"a", "quotes \" and ü", FindingLevel::kNote, "line", ""}};
  EXPECT_EQ(unpack_findings(pack_findings(findings)), findings);
  EXPECT_THROW(unpack_findings("[{}]"), InternalError);
  EXPECT_THROW(unpack_findings("no"), InternalError);
}

TEST(Finding, SharedOnesNameRanksAndHosts) {
  Finding other = kShm;
  other.found = "65 MiB";
  const std::vector<RankFindings> ranks = {
      {0, "a", {kShm, kFine}}, {1, "a", {kShm}}, {2, "b", {other}}, {3, "b", {kDisk}}};
  const Findings shared = shared_findings(ranks);
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_EQ(shared[0].found, "64 MiB (3 of 4 ranks: host a rank 0-1, host b rank 2)");
  EXPECT_EQ(shared[0].remedy, kShm.remedy);
  EXPECT_EQ(shared[1].found, "x cannot be written (1 of 4 ranks: host b rank 3)");
}

TEST(Finding, ARankThatSaysTwoThingsOfOneCheckIsCountedOnce) {
  const Findings shared = shared_findings(std::vector<RankFindings>{{0, "a", {kShm, kShm}}, {1, "a", {}}});
  ASSERT_EQ(shared.size(), 1u);
  EXPECT_EQ(shared[0].found, "64 MiB (1 of 2 ranks: host a rank 0)");
}

TEST(Finding, ManyHostsAreCounted) {
  std::vector<RankFindings> ranks;
  for (int rank = 0; rank < 20; ++rank) ranks.push_back({rank, std::to_string(rank), {kShm}});
  const Findings shared = shared_findings(ranks);
  ASSERT_EQ(shared.size(), 1u);
  EXPECT_NE(shared[0].found.find("20 of 20 ranks"), std::string::npos);
  EXPECT_NE(shared[0].found.find("and 12 more hosts"), std::string::npos);
}

TEST(Finding, RangesOfNumbers) {
  EXPECT_EQ(ranges_text({}), "");
  EXPECT_EQ(ranges_text({4}), "4");
  EXPECT_EQ(ranges_text({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

}  // namespace
}  // namespace megalith
