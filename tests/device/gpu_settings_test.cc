// Settings that training wants on each machine, and that the environment overrides them.
#include "device/gpu_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace megalith {
namespace {

std::map<std::string, std::string> wanted(const GpuSettingFacts& facts) {
  std::map<std::string, std::string> values;
  for (const GpuSetting& setting : wanted_gpu_settings(facts)) values[setting.name] = setting.value;
  return values;
}

GpuSettingFacts nvidia(std::vector<std::string> names, int tensor_parallel_size = 1, int world_size = 1) {
  return {.vendor = GpuVendor::kNvidia,
          .gpu_names = std::move(names),
          .tensor_parallel_size = tensor_parallel_size,
          .world_size = world_size};
}

TEST(GpuSettings, NoneOnTheCpu) {
  EXPECT_TRUE(wanted_gpu_settings({}).empty());
  EXPECT_EQ(gpu_setting_facts(DeviceChoice::kCpu, 8, false, 8).vendor, GpuVendor::kNone);
  EXPECT_EQ(gpu_settings_text({}), "");
}

TEST(GpuSettings, OneQueueForTensorParallelismUpToHopper) {
  const auto queues = [](const std::vector<std::string>& names, int tp) {
    return wanted(nvidia(names, tp, 8)).at("CUDA_DEVICE_MAX_CONNECTIONS");
  };
  EXPECT_EQ(queues({"NVIDIA H200"}, 1), "32");
  EXPECT_EQ(queues({"NVIDIA H200"}, 2), "1");
  EXPECT_EQ(queues({"NVIDIA A100-SXM4-80GB"}, 8), "1");
  EXPECT_EQ(queues({"NVIDIA GH200 480GB"}, 2), "1") << "Grace with a Hopper";
  EXPECT_EQ(queues({"NVIDIA GeForce RTX 4090"}, 2), "1");
  EXPECT_EQ(queues({"NVIDIA B200"}, 2), "32");
  EXPECT_EQ(queues({"NVIDIA GB300"}, 2), "32");
  EXPECT_EQ(queues({"NVIDIA RTX PRO 6000 Blackwell Server Edition"}, 2), "32");
  EXPECT_EQ(queues({"NVIDIA B200", "NVIDIA H200"}, 2), "1") << "it is not known which this rank has";
  EXPECT_EQ(queues({}, 2), "1") << "a driver that does not tell";
  GpuSettingFacts with_fsdp = nvidia({"NVIDIA H200"}, 2, 8);
  with_fsdp.is_fsdp = true;
  EXPECT_EQ(wanted(with_fsdp).at("CUDA_DEVICE_MAX_CONNECTIONS"), "32") << "gathers do not queue with products";
}

TEST(GpuSettings, SeveralRanksLaunchTheirCollectivesInOneOrder) {
  EXPECT_FALSE(wanted(nvidia({"NVIDIA H200"})).contains("NCCL_LAUNCH_ORDER_IMPLICIT"));
  EXPECT_EQ(wanted(nvidia({"NVIDIA H200"}, 1, 2)).at("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
}

TEST(GpuSettings, AmdHasOnlyThoseThatItsLibrariesRead) {
  const auto values = wanted({.vendor = GpuVendor::kAmd, .gpu_names = {}, .tensor_parallel_size = 2, .world_size = 8});
  ASSERT_EQ(values.size(), 1u);
  EXPECT_EQ(values.begin()->second, "off");
  EXPECT_TRUE(wanted(nvidia({"NVIDIA H200"})).contains(values.begin()->first));
}

TEST(GpuSettings, AreSetUnlessTheEnvironmentHasThem) {
  const std::string free = "MEGALITH_TEST_FREE", given = "MEGALITH_TEST_GIVEN", other = "MEGALITH_TEST_OTHER_NAME";
  ::unsetenv(free.c_str());
  ::setenv(given.c_str(), "mine", 1);
  ::setenv(other.c_str(), "x:1", 1);
  const auto in_force =
      apply_gpu_settings({{GpuSettingKind::kVariable, free, "1", {free}},
                          {GpuSettingKind::kVariable, given, "2", {given}},
                          {GpuSettingKind::kAllocator, "expandable_segments", "True", {"NONE", other}}});
  const std::vector<GpuSettingInForce> expected = {
      {free, "1", "megalith"}, {given, "mine", "the environment"}, {other, "x:1", "the environment"}};
  EXPECT_EQ(in_force, expected);
  EXPECT_STREQ(std::getenv(free.c_str()), "1");
  EXPECT_STREQ(std::getenv(given.c_str()), "mine");
  const std::string text = gpu_settings_text(in_force);
  EXPECT_NE(text.find("MEGALITH_TEST_FREE"), std::string::npos) << text;
  EXPECT_NE(text.find("mine  (set by the environment)"), std::string::npos) << text;
  for (const std::string& name : {free, given, other}) ::unsetenv(name.c_str());
}

}  // namespace
}  // namespace megalith
