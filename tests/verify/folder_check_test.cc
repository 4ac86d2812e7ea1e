// Probing folders: those that can be written, those that cannot, and what kind they are.
#include "verify/folder_check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/temporary_folder.h"

namespace megalith {
namespace {

using test::TemporaryFolder;
constexpr int64_t kProbeBytes = 3 << 20;

bool has_nothing(const std::filesystem::path& folder) { return std::filesystem::is_empty(folder); }

TEST(FolderCheck, AGoodFolderIsMeasuredAndLeftAsItWas) {
  const TemporaryFolder folder;
  const FolderFacts facts = probe_folder("save", folder.path(), kProbeBytes);
  EXPECT_EQ(facts.problem, "");
  EXPECT_GT(facts.write_bytes_per_s, 0);
  EXPECT_TRUE(facts.space.has_value());
  EXPECT_TRUE(has_nothing(folder.path()));
  const Findings findings = check_folder(facts);
  EXPECT_EQ(findings[0].check, "save");
  EXPECT_EQ(count_level(findings, FindingLevel::kError), 0);
}

TEST(FolderCheck, AFolderThatIsNotThereYetIsTriedAtItsParent) {
  const TemporaryFolder folder;
  const FolderFacts facts = probe_folder("save", folder.path() / "a" / "b/", kProbeBytes);
  EXPECT_EQ(facts.problem, "");
  EXPECT_EQ(facts.nearest, folder.path());
  EXPECT_TRUE(has_nothing(folder.path()));
}

TEST(FolderCheck, AFileInTheFoldersPlaceIsAnError) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.write("checkpoint", "");
  for (const std::filesystem::path& path : {file, file / "below"}) {
    const Findings findings = check_folder(probe_folder("save", path, kProbeBytes));
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].level, FindingLevel::kError);
    EXPECT_EQ(findings[0].found, path.string() + " cannot be written: " + file.string() + " is no folder");
    EXPECT_FALSE(findings[0].remedy.empty());
  }
}

TEST(FolderCheck, AFolderThatTheSystemRefusesIsAnError) {
  // No one can write into /proc, not even root.
  const Findings findings = check_folder(probe_folder("save", "/proc/self", kProbeBytes));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, FindingLevel::kError);
}

FolderFacts made_up(const std::string& type) {
  FolderFacts facts;
  facts.purpose = "save";
  facts.path = "/data";
  facts.mount = Mount{"/data", type, "somewhere"};
  facts.space = SpaceFacts{
      .total_bytes = int64_t{1} << 40, .free_bytes = int64_t{1} << 39, .total_inodes = 1000000, .free_inodes = 500000};
  facts.write_bytes_per_s = 1e9;
  return facts;
}

TEST(FolderCheck, KindsOfFileSystems) {
  for (const char* type : {"nfs4", "lustre", "overlay", "tmpfs"}) {
    const Findings findings = check_folder(made_up(type));
    EXPECT_EQ(findings.back().level, FindingLevel::kNote) << type;
    EXPECT_EQ(findings.back().check, "save file system");
    EXPECT_NE(findings.back().found.find(type), std::string::npos);
  }
  EXPECT_EQ(count_level(check_folder(made_up("ext4")), FindingLevel::kOk), 3);
}

TEST(FolderCheck, LittleSpaceFewInodesAndSlowDisksAreWarnings) {
  FolderFacts facts = made_up("ext4");
  facts.space->free_bytes = 1 << 20;
  facts.space->free_inodes = 10;
  facts.write_bytes_per_s = 1e6;
  const Findings findings = check_folder(facts);
  EXPECT_EQ(count_level(findings, FindingLevel::kWarning), 3) << findings_text(findings);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.level == FindingLevel::kWarning, !finding.remedy.empty()) << finding.check;
  }
}

}  // namespace
}  // namespace megalith
