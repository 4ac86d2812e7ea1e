// Doctor's findings on devices that are closed, clocks, tracing, firewalls, versions, the hub and folders of all nodes.
#include "verify/access_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "support/temporary_folder.h"
#include "verify/hub_check.h"
#include "verify/library_check.h"
#include "verify/shared_folder_check.h"

namespace megalith {
namespace {

const MachineUse kOnEightGpus{.uses_gpu = true, .local_world_size = 8, .world_size = 8};
const MachineUse kOnTwoMachines{.uses_gpu = true, .local_world_size = 8, .world_size = 16};
const MachineUse kOnProcessor{};

// The finding of a check, which must be there once, and which says what to do when something is wrong.
Finding the_one(const Findings& findings, const std::string& check) {
  const auto is_it = [&](const Finding& one) { return one.check == check; };
  EXPECT_EQ(std::count_if(findings.begin(), findings.end(), is_it), 1) << check << " in\n" << findings_text(findings);
  const auto found = std::find_if(findings.begin(), findings.end(), is_it);
  if (found == findings.end()) return {};
  if (found->level >= FindingLevel::kWarning) {
    EXPECT_FALSE(found->remedy.empty()) << check;
  }
  return *found;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(AccessCheck, AMachineWithoutAmdsGpusAndRdmaHasNothingToSay) {
  EXPECT_TRUE(check_device_access({}, kOnEightGpus, /*is_rocm=*/false, /*has_rdma=*/false).empty());
}

TEST(AccessCheck, DevicesThatAContainerWasNotGivenAreNamed) {
  const AccessFacts none{.has_amd_driver = true};
  const Findings findings = check_device_access(none, kOnEightGpus, /*is_rocm=*/true, /*has_rdma=*/true);
  for (const char* check : {"/dev/kfd", "/dev/dri"}) {
    EXPECT_EQ(the_one(findings, check).level, FindingLevel::kWarning);
    EXPECT_TRUE(says(the_one(findings, check).remedy, "--device /dev/kfd --device /dev/dri --group-add video"));
  }
  EXPECT_EQ(the_one(findings, "/dev/infiniband").level, FindingLevel::kWarning);
  EXPECT_TRUE(says(the_one(findings, "/dev/infiniband").remedy, "--device /dev/infiniband"));
  const Findings no_driver = check_device_access({}, kOnEightGpus, /*is_rocm=*/true, /*has_rdma=*/false);
  EXPECT_TRUE(says(the_one(no_driver, "/dev/kfd").found, "amdgpu is not loaded"));
}

TEST(AccessCheck, AClosedDeviceNamesTheGroupToJoin) {
  AccessFacts access{.has_amd_driver = true};
  access.kfd = DeviceNode{"/dev/kfd", "render", false};
  access.render = {{"/dev/dri/renderD128", "video", true}, {"/dev/dri/renderD136", "109", false}};
  access.verbs = {{"/dev/infiniband/uverbs0", "rdma", false}};
  const Findings findings = check_device_access(access, kOnEightGpus, /*is_rocm=*/true, /*has_rdma=*/true);
  const Finding kfd = the_one(findings, "/dev/kfd");
  EXPECT_EQ(kfd.level, FindingLevel::kError) << "the run is for GPUs";
  EXPECT_EQ(kfd.found, "/dev/kfd belongs to group render, and this process is not in it");
  EXPECT_TRUE(says(kfd.remedy, "usermod -aG render"));
  EXPECT_TRUE(says(the_one(findings, "/dev/dri").found, "/dev/dri/renderD136 belongs to group 109"));
  EXPECT_TRUE(says(the_one(findings, "/dev/dri").remedy, "--group-add 109"));
  EXPECT_EQ(the_one(findings, "/dev/infiniband").level, FindingLevel::kWarning) << "TCP works";
  const Findings on_processor = check_device_access(access, kOnProcessor, /*is_rocm=*/true, /*has_rdma=*/true);
  EXPECT_EQ(count_level(on_processor, FindingLevel::kError), 0);
  access.kfd->may_open = access.render[1].may_open = access.verbs[0].may_open = true;
  const Findings open = check_device_access(access, kOnEightGpus, /*is_rocm=*/true, /*has_rdma=*/true);
  EXPECT_EQ(count_level(open, FindingLevel::kOk), 3);
  EXPECT_EQ(the_one(open, "/dev/dri").found, "2 devices can be opened");
}

TEST(AccessCheck, ClocksThatMoveAreANoteAndThoseThatDifferAWarning) {
  EXPECT_TRUE(check_gpu_clocks({}).empty());
  EXPECT_EQ(the_one(check_gpu_clocks({"perf_determinism"}), "GPU clocks").level, FindingLevel::kOk);
  const Finding moving = the_one(check_gpu_clocks({"auto"}), "GPU clocks");
  EXPECT_EQ(moving.level, FindingLevel::kNote);
  EXPECT_TRUE(says(moving.remedy, "rocm-smi --setperfdeterminism"));
  EXPECT_EQ(the_one(check_gpu_clocks({"low"}), "GPU clocks").level, FindingLevel::kWarning);
  const Finding different = the_one(check_gpu_clocks({"auto", "perf_determinism"}), "GPU clocks");
  EXPECT_EQ(different.level, FindingLevel::kWarning);
  EXPECT_TRUE(says(different.found, "auto, perf_determinism"));
}

TEST(AccessCheck, TracingIsANoteWhereItIsRestricted) {
  EXPECT_EQ(the_one(check_tracing({}), "ptrace").level, FindingLevel::kOk) << "a kernel without Yama";
  EXPECT_EQ(the_one(check_tracing({.ptrace_scope = 1}), "ptrace").level, FindingLevel::kNote);
  EXPECT_TRUE(says(the_one(check_tracing({.ptrace_scope = 1}), "ptrace").remedy, "--cap-add SYS_PTRACE"));
  const AccessFacts capable{.ptrace_scope = 1, .has_trace_capability = true};
  EXPECT_EQ(the_one(check_tracing(capable), "ptrace").level, FindingLevel::kOk);
}

TEST(AccessCheck, AFirewallIsAWarningOnceThereAreOtherMachines) {
  EXPECT_EQ(the_one(check_firewalls({}, kOnTwoMachines), "firewall").level, FindingLevel::kOk);
  EXPECT_EQ(the_one(check_firewalls({"ufw"}, kOnEightGpus), "firewall").level, FindingLevel::kNote);
  const Finding ufw = the_one(check_firewalls({"ufw"}, kOnTwoMachines), "firewall");
  EXPECT_EQ(ufw.level, FindingLevel::kWarning);
  EXPECT_TRUE(says(ufw.remedy, "ufw allow from"));
  EXPECT_TRUE(says(the_one(check_firewalls({"firewalld"}, kOnTwoMachines), "firewall").remedy, "firewall-cmd"));
}

TEST(LibraryCheck, VersionsAreReadFromNumbers) {
  EXPECT_EQ(cuda_version_text(13000), "13.0");
  EXPECT_EQ(cuda_version_text(12080), "12.8");
  EXPECT_EQ(cublaslt_version_text(130002), "13.0.2");
  EXPECT_EQ(hip_version_text(60342134), "6.3.42134");
}

TEST(LibraryCheck, OlderThanAmdsImageIsANote) {
  EXPECT_TRUE(check_gpu_libraries({}).empty());
  LibraryVersions versions;
  versions.rocm = "6.3.4", versions.hipblaslt = "0.9.1", versions.rccl = "2.27.3";
  const Findings findings = check_gpu_libraries(versions);
  EXPECT_EQ(the_one(findings, "ROCm").level, FindingLevel::kOk);
  EXPECT_EQ(the_one(findings, "ROCm").found, "6.3.4 (AMD's image v25.5: 6.3.4)");
  EXPECT_EQ(the_one(findings, "hipBLASLt").level, FindingLevel::kNote) << "9 is less than 13";
  EXPECT_EQ(the_one(findings, "RCCL").level, FindingLevel::kOk);
  EXPECT_EQ(findings.size(), 3u);
}

TEST(HubCheck, AnswersOfTheHub) {
  HubSettings settings;
  settings.endpoint = "https://hub.example";
  const auto token_level = [&](int status, const std::string& body = "") {
    return the_one(judge_hub_answer(settings, status, body), "hub token").level;
  };
  EXPECT_EQ(token_level(401), FindingLevel::kNote) << "nobody gave one";
  settings.token = "hf_secret", settings.token_source = "HF_TOKEN";
  EXPECT_EQ(token_level(401), FindingLevel::kError);
  EXPECT_EQ(token_level(403), FindingLevel::kError);
  EXPECT_EQ(token_level(404), FindingLevel::kNote) << "a mirror";
  EXPECT_EQ(token_level(200, "not JSON"), FindingLevel::kOk);
  const Findings taken = judge_hub_answer(settings, 200, R"({"name": "ada", "auth": {}})");
  EXPECT_EQ(the_one(taken, "hub token").found, "that of HF_TOKEN is taken: it is ada's");
  const Findings down = judge_hub_answer(settings, 503, "");
  EXPECT_EQ(the_one(down, "hub").level, FindingLevel::kWarning);
  for (const int status : {200, 401, 404, 503}) {
    EXPECT_FALSE(says(findings_text(judge_hub_answer(settings, status, "")), "hf_secret"));
  }
  settings.is_offline = true;
  EXPECT_EQ(the_one(check_hub(settings), "hub").level, FindingLevel::kNote);
}

TEST(SharedFolder, AProbeIsThereAndGoneAgain) {
  const test::TemporaryFolder folder;
  std::string path;
  {
    const SharedFolderProbe probe((folder.path() / "not" / "there" / "yet").string());
    path = probe.path();
    EXPECT_EQ(std::filesystem::path(path).parent_path(), folder.path());
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(SharedFolderProbe("/proc/no/such").path(), "") << "where nobody can write";
}

TEST(SharedFolder, RanksThatDoNotSeeItAreNamed) {
  std::vector<FolderSight> sights;
  for (int rank = 0; rank < 16; ++rank) sights.push_back({rank, rank < 8 ? "gpu1" : "gpu2", rank < 8});
  const Finding apart = check_shared_folder("data_cache_path", "/data/cache", sights);
  EXPECT_EQ(apart.topic, "disk");
  EXPECT_EQ(apart.level, FindingLevel::kWarning);
  EXPECT_EQ(apart.found, "/data/cache: what rank 0 writes is not seen by rank 8-15 (gpu2)");
  EXPECT_TRUE(says(apart.remedy, "--data_cache_path"));
  for (FolderSight& one : sights) one.sees_probe = true;
  EXPECT_EQ(check_shared_folder("data_cache_path", "/shared", sights).level, FindingLevel::kOk);
}

}  // namespace
}  // namespace megalith
