// Reading what a process may do, from fake roots: device nodes and groups, tracing, clocks, firewalls, ROCm.
#include "device/machine_access.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/temporary_folder.h"

namespace megalith {
namespace {

using test::TemporaryFolder;

// A device node's stand-in: a file of this test's group.
int64_t add_node(const TemporaryFolder& root, const std::string& name, mode_t mode) {
  const std::filesystem::path path = root.write(name, "");
  ::chmod(path.c_str(), mode);
  struct stat found {};
  ::stat(path.c_str(), &found);
  return static_cast<int64_t>(found.st_gid);
}

std::string status_text(int64_t user, const std::string& groups, const std::string& capabilities) {
  const std::string id = std::to_string(user);
  return "Name:\tmegalith\nUid:\t" + id + "\t" + id + "\t" + id + "\t" + id +
         "\nGid:\t4000000\t4000000\t4000000\t4000000\nGroups:\t" + groups + " \nCapEff:\t" + capabilities + "\n";
}

constexpr const char* kNoCapabilities = "0000000000000000";
constexpr int64_t kSomebody = 3999999;  // owns nothing here

TEST(MachineAccess, ADeviceIsOpenToItsGroupOnly) {
  const TemporaryFolder root;
  const int64_t group = add_node(root, "dev/kfd", 0660);
  add_node(root, "dev/dri/renderD128", 0666);
  add_node(root, "dev/dri/renderD129", 0600);
  add_node(root, "dev/dri/card0", 0600);
  add_node(root, "dev/infiniband/uverbs0", 0660);
  add_node(root, "dev/infiniband/rdma_cm", 0660);
  root.write("etc/group", "root:x:7777777:\nrender:x:" + std::to_string(group) + ":me,you\nvideo:x:44:\n");
  root.write("proc/self/status", status_text(kSomebody, "44 " + std::to_string(group), kNoCapabilities));
  AccessFacts facts = read_access(root.path());
  ASSERT_TRUE(facts.kfd.has_value());
  EXPECT_EQ(facts.kfd->path, "/dev/kfd");
  EXPECT_EQ(facts.kfd->group, "render");
  EXPECT_TRUE(facts.kfd->may_open);
  ASSERT_EQ(facts.render.size(), 2u) << "card0 is for displays";
  EXPECT_TRUE(facts.render[0].may_open);
  EXPECT_FALSE(facts.render[1].may_open) << "its owner's only";
  ASSERT_EQ(facts.verbs.size(), 1u);
  EXPECT_EQ(facts.verbs[0].path, "/dev/infiniband/uverbs0");

  root.write("proc/self/status", status_text(kSomebody, "44", kNoCapabilities));
  root.write("etc/group", "video:x:44:\n");
  facts = read_access(root.path());
  EXPECT_FALSE(facts.kfd->may_open);
  EXPECT_EQ(facts.kfd->group, std::to_string(group)) << "as in a container, which does not know the host's groups";
  EXPECT_TRUE(facts.render[0].may_open) << "everybody's";

  root.write("proc/self/status", status_text(0, "", kNoCapabilities));
  EXPECT_TRUE(read_access(root.path()).render[1].may_open) << "root's";
}

TEST(MachineAccess, TracingIsAllowedByYamaOrByACapability) {
  const TemporaryFolder root;
  EXPECT_FALSE(read_access(root.path()).ptrace_scope.has_value());
  EXPECT_FALSE(read_access(root.path()).has_trace_capability);
  root.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
  root.write("proc/self/status", status_text(kSomebody, "", "0000000000080000"));
  EXPECT_EQ(read_access(root.path()).ptrace_scope, 1);
  EXPECT_TRUE(read_access(root.path()).has_trace_capability);
  root.write("proc/self/status", status_text(kSomebody, "", "000001fffff7ffff"));
  EXPECT_FALSE(read_access(root.path()).has_trace_capability) << "all but that one";
}

TEST(MachineAccess, ClocksAreThoseOfAmdsCards) {
  const TemporaryFolder root;
  EXPECT_TRUE(read_gpu_clock_levels(root.path()).empty());
  const std::string cards = "sys/class/drm/";
  root.write(cards + "card0/device/vendor", "0x1a03\n");
  root.write(cards + "card0/device/power_dpm_force_performance_level", "low\n");
  for (const char* card : {"card1", "card2"}) {
    root.write(cards + card + "/device/vendor", "0x1002\n");
    root.write(cards + card + "/device/power_dpm_force_performance_level", "auto\n");
  }
  EXPECT_EQ(read_gpu_clock_levels(root.path()), std::vector<std::string>{"auto"});
  root.write(cards + "card2/device/power_dpm_force_performance_level", "perf_determinism\n");
  EXPECT_EQ(read_gpu_clock_levels(root.path()), (std::vector<std::string>{"auto", "perf_determinism"}));
}

TEST(MachineAccess, FirewallsThatAreOn) {
  const TemporaryFolder root;
  EXPECT_TRUE(read_firewalls(root.path()).empty());
  root.write("etc/ufw/ufw.conf", "# ENABLED=yes starts it\nENABLED=no\n");
  EXPECT_TRUE(read_firewalls(root.path()).empty());
  root.write("etc/ufw/ufw.conf", "# ufw\nENABLED=yes\nLOGLEVEL=low\n");
  root.write("sys/fs/cgroup/system.slice/firewalld.service/cgroup.procs", "1\n");
  EXPECT_EQ(read_firewalls(root.path()), (std::vector<std::string>{"ufw", "firewalld"}));
}

TEST(MachineAccess, RocmsVersions) {
  const TemporaryFolder root;
  EXPECT_EQ(read_rocm(root.path()).rocm, "");
  root.write("opt/rocm/.info/version", "6.3.4-76\n");
  root.write("opt/rocm/include/hipblaslt/hipblaslt-version.h",
             "// clang-format off\n#define HIPBLASLT_VERSION_MAJOR 0\n#define HIPBLASLT_VERSION_MINOR       13\n"
             "#define HIPBLASLT_VERSION_PATCH 0\n#define HIPBLASLT_VERSION_TWEAK 4f18bf6\n");
  EXPECT_EQ(read_rocm(root.path()).rocm, "6.3.4");
  EXPECT_EQ(read_rocm(root.path()).hipblaslt, "0.13.0");
}

}  // namespace
}  // namespace megalith
