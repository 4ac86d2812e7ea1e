// Doctor's findings on a machine, from made-up facts, good and bad.
#include "verify/machine_check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "verify/torch_build.h"
#include "verify/variable_check.h"

namespace megalith {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
const MachineUse kOneOnCpu{};
const MachineUse kEightOnGpus{.uses_gpu = true, .local_world_size = 8, .world_size = 8};

// The finding of a check; fails when there is not exactly one.
Finding only(const Findings& findings, const std::string& check) {
  const auto is_it = [&](const Finding& one) { return one.check == check; };
  EXPECT_EQ(std::count_if(findings.begin(), findings.end(), is_it), 1) << check << " in\n" << findings_text(findings);
  const auto found = std::find_if(findings.begin(), findings.end(), is_it);
  return found == findings.end() ? Finding{} : *found;
}

bool has_check(const Findings& findings, const std::string& check) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& one) { return one.check == check; });
}

// Every warning and error says what to do.
void expect_remedies(const Findings& findings) {
  for (const Finding& finding : findings) {
    if (finding.level >= FindingLevel::kWarning) {
      EXPECT_FALSE(finding.remedy.empty()) << finding.check << ": " << finding.found;
    }
  }
}

TEST(MachineCheck, ProcessorSaysWhatBf16Costs) {
  const CpuFacts cpu{.model = "Some CPU", .num_processors = 8, .governors = {"performance"}};
  const Findings fast = check_processor(cpu, {.avx2 = true, .amx_bf16 = true}, 4, kOneOnCpu);
  EXPECT_EQ(only(fast, "processor").found, "Some CPU, 4 cores (8 hardware threads)");
  EXPECT_EQ(only(fast, "instruction sets").level, FindingLevel::kOk);
  const Findings slow = check_processor(cpu, {.avx2 = true}, 4, kOneOnCpu);
  EXPECT_EQ(only(slow, "instruction sets").level, FindingLevel::kNote);
  EXPECT_NE(only(slow, "instruction sets").found.find("emulated"), std::string::npos);
  EXPECT_FALSE(has_check(slow, "cores of the ranks"));
  const Findings crowded = check_processor({.model = "", .num_processors = 2, .governors = {"powersave"}}, {}, 2,
                                           {.uses_gpu = false, .local_world_size = 3, .world_size = 3});
  EXPECT_EQ(only(crowded, "cores of the ranks").level, FindingLevel::kWarning);
  EXPECT_EQ(only(crowded, "clock").level, FindingLevel::kNote);
  expect_remedies(crowded);
}

TEST(MachineCheck, ThreadsThatHaveNoProcessorOfTheirOwnAreSeen) {
  const Findings free = check_threads({.threads = 4, .processors = 8}, "active");
  EXPECT_EQ(only(free, "threads").level, FindingLevel::kOk);
  EXPECT_EQ(only(free, "threads").found, "4 threads on 8 processors");
  const ProcessorShare in_container{.threads = 8, .processors = 8, .quota = 2.5};
  const Findings asleep = check_threads(in_container, "");
  EXPECT_EQ(only(asleep, "threads").level, FindingLevel::kNote);
  EXPECT_NE(only(asleep, "threads").found.find("of which this container may use 2.5"), std::string::npos);
  const Findings spinning = check_threads(in_container, "ACTIVE");
  EXPECT_EQ(only(spinning, "threads").level, FindingLevel::kWarning);
  expect_remedies(spinning);
}

TEST(MachineCheck, GpusThatTheBuildCannotUseAreNamed) {
  const GpuFacts nvidia{.has_nvidia = true,
                        .has_amd = false,
                        .nvidia_driver = "550.54.15",
                        .amd_driver = "",
                        .devices = {{.name = "NVIDIA H200", .architecture = "", .memory_bytes = {}}}};
  const Findings unused = check_gpus(nvidia, {.flavour = "CPU", .num_accelerators = 0, .memory = {}}, kOneOnCpu);
  EXPECT_EQ(only(unused, "unused GPUs").level, FindingLevel::kNote);
  EXPECT_NE(only(unused, "unused GPUs").remedy.find("CUDA"), std::string::npos);
  EXPECT_EQ(only(unused, "NVIDIA driver").found, "550.54.15");
  EXPECT_EQ(only(unused, "GPUs of the machine").found, "1 x NVIDIA H200");
  const Findings used =
      check_gpus(nvidia, {.flavour = "CUDA", .num_accelerators = 1, .memory = {{0, 130 * kGiB, 140 * kGiB}}},
                 {.uses_gpu = true, .local_world_size = 1, .world_size = 1});
  EXPECT_FALSE(has_check(used, "unused GPUs"));
  EXPECT_EQ(only(used, "GPU 0").level, FindingLevel::kOk);
  EXPECT_EQ(check_gpus({}, {.flavour = "CPU", .num_accelerators = 0, .memory = {}}, kOneOnCpu).size(), 1u);
}

TEST(MachineCheck, MoreRanksThanGpusIsAnError) {
  const VisibleDevices two{
      .flavour = "CUDA", .num_accelerators = 2, .memory = {{0, 8 * kGiB, 80 * kGiB}, {1, 80 * kGiB, 80 * kGiB}}};
  const Findings findings = check_gpus({.has_nvidia = true}, two, kEightOnGpus);
  EXPECT_EQ(only(findings, "ranks and GPUs").level, FindingLevel::kError);
  EXPECT_EQ(only(findings, "ranks and GPUs").found, "8 ranks on this machine, and 2 GPUs for them");
  EXPECT_EQ(only(findings, "GPU 0").level, FindingLevel::kWarning) << "most of it is taken";
  EXPECT_EQ(only(findings, "GPU 1").level, FindingLevel::kOk);
  expect_remedies(findings);
  const Findings none = check_gpus({}, {.flavour = "ROCm", .num_accelerators = 0, .memory = {}}, kOneOnCpu);
  EXPECT_EQ(only(none, "GPUs").level, FindingLevel::kWarning);
}

TEST(MachineCheck, Memory) {
  MemoryFacts facts{.total_bytes = 64 * kGiB,
                    .available_bytes = 60 * kGiB,
                    .swap_total_bytes = 8 * kGiB,
                    .swap_free_bytes = 8 * kGiB};
  EXPECT_EQ(count_level(check_memory(facts), FindingLevel::kOk), 2);
  facts.limit_bytes = 16 * kGiB;
  facts.limit_used_bytes = kGiB;
  EXPECT_EQ(only(check_memory(facts), "control group").level, FindingLevel::kNote);
  facts.limit_used_bytes = 15 * kGiB;
  facts.swap_free_bytes = kGiB;
  facts.available_bytes = kGiB;
  facts.transparent_huge_pages = "never";
  const Findings bad = check_memory(facts);
  EXPECT_EQ(only(bad, "control group").level, FindingLevel::kWarning);
  EXPECT_EQ(only(bad, "swap").level, FindingLevel::kWarning);
  EXPECT_EQ(only(bad, "main memory").level, FindingLevel::kWarning);
  EXPECT_EQ(only(bad, "huge pages").level, FindingLevel::kNote);
  expect_remedies(bad);
  EXPECT_EQ(only(check_memory({}), "main memory").level, FindingLevel::kNote);
}

TEST(MachineCheck, DockersSharedMemoryIsTooSmallForGpus) {
  const SpaceFacts docker{.total_bytes = 64 << 20, .free_bytes = 64 << 20};
  const Finding small = only(check_shared_memory(docker, kEightOnGpus), "/dev/shm");
  EXPECT_EQ(small.level, FindingLevel::kWarning);
  EXPECT_NE(small.found.find("64.0 MiB"), std::string::npos) << small.found;
  EXPECT_NE(small.remedy.find("--shm-size 16g"), std::string::npos) << small.remedy;
  EXPECT_EQ(only(check_shared_memory(docker, kOneOnCpu), "/dev/shm").level, FindingLevel::kNote);
  EXPECT_EQ(only(check_shared_memory({}, kEightOnGpus), "/dev/shm").level, FindingLevel::kWarning);
  const SpaceFacts full{.total_bytes = 128 * kGiB, .free_bytes = kGiB};
  EXPECT_NE(only(check_shared_memory(full, kEightOnGpus), "/dev/shm").remedy.find("remove"), std::string::npos);
  const SpaceFacts good{.total_bytes = 128 * kGiB, .free_bytes = 128 * kGiB};
  EXPECT_EQ(only(check_shared_memory(good, kEightOnGpus), "/dev/shm").level, FindingLevel::kOk);
}

TEST(MachineCheck, NumaBalancingMustBeOffForGpus) {
  SystemFacts system{.host = "", .kernel = "", .numa_balancing = 1, .num_numa_nodes = 2};
  const Finding on = only(check_numa(system, kEightOnGpus), "balancing");
  EXPECT_EQ(on.level, FindingLevel::kWarning);
  EXPECT_EQ(on.remedy, "sudo sh -c 'echo 0 > /proc/sys/kernel/numa_balancing'");
  EXPECT_EQ(only(check_numa(system, kOneOnCpu), "balancing").level, FindingLevel::kNote);
  EXPECT_EQ(only(check_numa(system, kOneOnCpu), "nodes").found, "2");
  system.numa_balancing = 0;
  EXPECT_EQ(only(check_numa(system, kEightOnGpus), "balancing").level, FindingLevel::kOk);
  EXPECT_EQ(only(check_numa({}, kEightOnGpus), "balancing").level, FindingLevel::kOk);
}

TEST(MachineCheck, Limits) {
  const LimitFacts roomy{
      .is_known = true, .open_files = 1048576, .locked_bytes = {}, .processes = {}, .open_files_hard = 1048576};
  EXPECT_EQ(count_level(check_limits(roomy, kEightOnGpus, true), FindingLevel::kOk), 3);
  const LimitFacts tight{
      .is_known = true, .open_files = 256, .locked_bytes = 65536, .processes = 100, .open_files_hard = 4096};
  const Findings bad = check_limits(tight, kEightOnGpus, true);
  EXPECT_EQ(count_level(bad, FindingLevel::kWarning), 3);
  EXPECT_EQ(only(bad, "open files (-n)").remedy, "ulimit -n 4096");
  expect_remedies(bad);
  EXPECT_EQ(only(check_limits(tight, kEightOnGpus, false), "locked memory (-l)").level, FindingLevel::kOk);
  EXPECT_EQ(check_limits({}, kOneOnCpu, false).front().level, FindingLevel::kNote);
}

TEST(MachineCheck, RdmaPortsWithoutACableAreNotedBesideOnesThatWork) {
  const RdmaPort active{
      .device = "mlx5_0", .port = 1, .state = "ACTIVE", .rate = "400 Gb/sec", .link_layer = "InfiniBand"};
  const RdmaPort down{.device = "mlx5_1", .port = 1, .state = "DOWN", .rate = "", .link_layer = ""};
  const std::vector<RdmaPort> both = {active, down}, none_works = {down};
  EXPECT_EQ(only(check_rdma(both, kEightOnGpus), "RDMA mlx5_0:1").found, "ACTIVE, 400 Gb/sec, InfiniBand");
  EXPECT_EQ(only(check_rdma(both, kEightOnGpus), "RDMA mlx5_1:1").level, FindingLevel::kNote);
  EXPECT_EQ(only(check_rdma(none_works, kEightOnGpus), "RDMA mlx5_1:1").level, FindingLevel::kWarning);
  EXPECT_EQ(only(check_rdma({}, kEightOnGpus), "RDMA devices").level, FindingLevel::kOk);
  const MachineUse two_machines{.uses_gpu = true, .local_world_size = 8, .world_size = 16};
  EXPECT_EQ(only(check_rdma({}, two_machines), "RDMA devices").level, FindingLevel::kWarning);
  expect_remedies(check_rdma({}, two_machines));
}

TEST(VariableCheck, WhatSlowsARunIsNamed) {
  const EnvironmentMap bad = {{"CUDA_LAUNCH_BLOCKING", "1"}, {"NCCL_P2P_DISABLE", "1"},     {"NCCL_IB_DISABLE", "0"},
                              {"NCCL_DEBUG", "INFO"},        {"CUDA_VISIBLE_DEVICES", " "}, {"NCCL_ALGO", "Ring"}};
  const Findings findings = check_variables(bad, kEightOnGpus, 64, false);
  EXPECT_EQ(only(findings, "CUDA_LAUNCH_BLOCKING").level, FindingLevel::kWarning);
  EXPECT_EQ(only(findings, "NCCL_P2P_DISABLE").level, FindingLevel::kWarning);
  EXPECT_FALSE(has_check(findings, "NCCL_IB_DISABLE"));
  EXPECT_EQ(only(findings, "NCCL_DEBUG").level, FindingLevel::kNote);
  EXPECT_EQ(only(findings, "CUDA_VISIBLE_DEVICES").level, FindingLevel::kWarning);
  EXPECT_NE(only(findings, "variables that are set").found.find("NCCL_ALGO=Ring"), std::string::npos);
  expect_remedies(findings);
}

TEST(VariableCheck, AnEmptyEnvironmentIsFine) {
  const Findings findings = check_variables({}, kEightOnGpus, 64, false);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, FindingLevel::kOk);
  EXPECT_EQ(only(check_variables({}, kEightOnGpus, 64, true), "HSA_NO_SCRATCH_RECLAIM").level, FindingLevel::kNote);
  EXPECT_FALSE(
      has_check(check_variables({{"HSA_NO_SCRATCH_RECLAIM", "1"}}, kEightOnGpus, 64, true), "HSA_NO_SCRATCH_RECLAIM"));
}

TEST(VariableCheck, ThreadsOfAllRanksShareTheCores) {
  const MachineUse four{.uses_gpu = false, .local_world_size = 4, .world_size = 4};
  const auto level = [&](const char* threads, int cores) {
    const Findings findings = check_variables({{"OMP_NUM_THREADS", threads}}, four, cores, false);
    return has_check(findings, "OMP_NUM_THREADS") ? only(findings, "OMP_NUM_THREADS").level : FindingLevel::kOk;
  };
  EXPECT_EQ(level("4", 16), FindingLevel::kOk);
  EXPECT_EQ(level("5", 16), FindingLevel::kWarning);
  EXPECT_EQ(level("many", 16), FindingLevel::kWarning);
  EXPECT_EQ(level("1", 16), FindingLevel::kNote);
  EXPECT_EQ(level("1", 4), FindingLevel::kOk);
}

TEST(TorchBuild, ReadsWhatTheLibraryTells) {
  const TorchBuild build = parse_torch_config(
      "PyTorch built with:\n  - GCC 13.3\n  - C++ Version: 202002\n  - CPU capability usage: AVX2\n  - Build settings: "
      "BLAS_INFO=mkl, TORCH_VERSION=2.13.0, USE_CUDA=1, USE_GLOO=ON, USE_NCCL=1, USE_ROCM=OFF, \n");
  EXPECT_EQ(build.loaded, "2.13.0");
  EXPECT_EQ(build.flavour, "CUDA");
  EXPECT_EQ(build.compiler, "GCC 13.3");
  EXPECT_EQ(build.kernels, "AVX2");
  EXPECT_TRUE(build.has_gloo);
  EXPECT_TRUE(build.has_nccl);
  EXPECT_EQ(parse_torch_config("USE_CUDA=0, USE_ROCM=ON, ").flavour, "ROCm");
  EXPECT_EQ(parse_torch_config("").flavour, "CPU");
}

TEST(TorchBuild, AnotherVersionThanCompiledAgainstIsAnError) {
  const auto level = [](const char* compiled, const char* loaded) {
    return check_torch({.compiled = compiled, .loaded = loaded, .flavour = "CPU", .compiler = "", .kernels = ""})[0]
        .level;
  };
  EXPECT_EQ(level("2.13.0", "2.13.1"), FindingLevel::kOk);
  EXPECT_EQ(level("2.11.0", "2.11.0a0+git1"), FindingLevel::kOk);
  EXPECT_EQ(level("2.13.0", "2.11.0"), FindingLevel::kError);
  EXPECT_EQ(level("2.14.0", "2.14.0"), FindingLevel::kWarning);
  EXPECT_EQ(level("2.13.0", ""), FindingLevel::kNote);
  const TorchBuild own = torch_build();
  EXPECT_FALSE(own.loaded.empty());
  EXPECT_EQ(check_torch(own)[0].level, FindingLevel::kOk) << check_torch(own)[0].found;
}

}  // namespace
}  // namespace megalith
