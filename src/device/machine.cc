// Formats: proc(5); kernel documentation of cgroup v1 and v2, sysfs-class-infiniband, amdkfd.
#include "device/machine.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "core/folder.h"
#include "core/strings.h"
#include "device/fact_files.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using namespace fact_files;

// Unlimited in v1 is the largest multiple of a page.
constexpr int64_t kNoLimit = int64_t{1} << 60;

struct ControlGroupLimit {
  std::optional<int64_t> limit, used, cache;
};

// Includes descendants, which v1 counts under separate names.
std::optional<int64_t> control_group_cache(const fs::path& group) {
  const auto fields = fields_of(file_text(group / "memory.stat"), " ");
  for (const std::string prefix : {"total_", ""}) {
    const auto active = fields.find(prefix + "active_file"), inactive = fields.find(prefix + "inactive_file");
    if (active == fields.end() || inactive == fields.end()) continue;
    const std::optional<int64_t> one = whole_number(active->second), other = whole_number(inactive->second);
    if (one && other) return *one + *other;
  }
  return std::nullopt;
}

// Includes the top, where a container's files often are.
ControlGroupLimit tightest_limit(const fs::path& mount, fs::path group, const char* limit_name, const char* used_name) {
  ControlGroupLimit tightest;
  group = group.relative_path();
  while (true) {
    const std::optional<int64_t> limit = whole_number(file_text(mount / group / limit_name));
    if (limit && *limit > 0 && *limit < kNoLimit && (!tightest.limit || *limit < *tightest.limit)) {
      tightest.limit = limit;
      tightest.used = whole_number(file_text(mount / group / used_name));
      tightest.cache = control_group_cache(mount / group);
    }
    if (group.empty()) return tightest;
    group = group.parent_path();
  }
}

struct ControlGroups {
  std::string v2 = "/", v1 = "/";
};
ControlGroups control_groups(const fs::path& root, std::string_view controller) {
  ControlGroups groups;
  for (const std::string& line : lines_of(file_text(root / "proc/self/cgroup"))) {
    // "0::/user.slice" is v2, "4:memory:/docker/…" v1.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") groups.v2 = line.substr(second + 1);
    if (controllers.find(fmt::format(",{},", controller)) != std::string::npos) groups.v1 = line.substr(second + 1);
  }
  return groups;
}

ControlGroupLimit control_group_limit(const fs::path& root) {
  const ControlGroups groups = control_groups(root, "memory");
  const fs::path mount = root / "sys/fs/cgroup";
  const ControlGroupLimit v2 = tightest_limit(mount, groups.v2, "memory.max", "memory.current");
  const ControlGroupLimit v1 =
      tightest_limit(mount / "memory", groups.v1, "memory.limit_in_bytes", "memory.usage_in_bytes");
  if (!v2.limit || (v1.limit && *v1.limit < *v2.limit)) return v1;
  return v2;
}

// "200000 100000"; "max 100000" if unlimited.
std::optional<double> quota_in_v2(const fs::path& group) {
  const std::vector<std::string> words = split_words(file_text(group / "cpu.max"));
  if (words.size() != 2) return std::nullopt;
  const auto quota = whole_number(words[0]), period = whole_number(words[1]);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// The quota is -1 if unlimited.
std::optional<double> quota_in_v1(const fs::path& group) {
  const auto quota = whole_number(file_text(group / "cpu.cfs_quota_us"));
  const auto period = whole_number(file_text(group / "cpu.cfs_period_us"));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

void take_tightest_quota(const fs::path& mount, fs::path group, std::optional<double> (*quota_in)(const fs::path&),
                         std::optional<double>& least) {
  group = group.relative_path();
  while (true) {
    const std::optional<double> quota = quota_in(mount / group);
    if (quota && (!least || *quota < *least)) least = quota;
    if (group.empty()) return;
    group = group.parent_path();
  }
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  …"
std::string nvidia_version(const std::string& text) {
  const size_t end = text.find('\n');
  for (const std::string& word : split_words(text.substr(0, end))) {
    const bool is_version =
        word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version) return word;
  }
  return "";
}

// gfx942 is 90402: major, then two decimal digits each of minor and stepping.
std::string gfx_name(int64_t version) {
  return fmt::format("gfx{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100);
}

void add_amd_devices(const fs::path& root, GpuFacts& facts) {
  const fs::path nodes = root / "sys/class/kfd/kfd/topology/nodes";
  // Only the display driver knows product names.
  std::vector<std::string> products;
  for (const std::string& card : names_in(root / "sys/class/drm")) {
    if (!is_numbered(card, "card")) continue;
    const std::string product = trimmed(root / "sys/class/drm" / card / "device/product_name");
    if (!product.empty()) products.push_back(product);
  }
  std::vector<GpuFacts::Device> devices;
  for (const std::string& node : names_in(nodes)) {
    const auto fields = fields_of(file_text(nodes / node / "properties"), " ");
    const auto value = [&](const char* name) {
      const auto found = fields.find(name);
      return found == fields.end() ? std::optional<int64_t>() : whole_number(found->second);
    };
    if (value("simd_count").value_or(0) == 0) continue;  // a processor
    GpuFacts::Device device{
        .name = "AMD GPU", .architecture = gfx_name(value("gfx_target_version").value_or(0)), .memory_bytes = {}};
    int64_t bytes = 0;
    for (const std::string& bank : names_in(nodes / node / "mem_banks")) {
      const auto bank_fields = fields_of(file_text(nodes / node / "mem_banks" / bank / "properties"), " ");
      const auto size = bank_fields.find("size_in_bytes");
      if (size != bank_fields.end()) bytes += whole_number(size->second).value_or(0);
    }
    if (bytes > 0) device.memory_bytes = bytes;
    devices.push_back(std::move(device));
  }
  if (products.size() == devices.size()) {
    for (size_t i = 0; i < devices.size(); ++i) devices[i].name = products[i];
  }
  std::move(devices.begin(), devices.end(), std::back_inserter(facts.devices));
}

// A blank is \040 in the mount table.
std::string unescaped(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_octal = text[i] == '\\' && i + 3 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '3';
    if (!is_octal) {
      result += text[i];
      continue;
    }
    result += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return result;
}

}  // namespace

CpuFacts read_cpu(const fs::path& root) {
  CpuFacts facts;
  for (const std::string& line : lines_of(file_text(root / "proc/cpuinfo"))) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view key = trim(std::string_view(line).substr(0, colon));
    if (key == "processor") ++facts.num_processors;
    if (key == "model name" && facts.model.empty()) facts.model = std::string(trim(line.substr(colon + 1)));
  }
  std::set<std::string> governors;
  const fs::path cpus = root / "sys/devices/system/cpu";
  for (const std::string& cpu : names_in(cpus)) {
    if (!is_numbered(cpu, "cpu")) continue;
    const std::string governor = trimmed(cpus / cpu / "cpufreq/scaling_governor");
    if (!governor.empty()) governors.insert(governor);
  }
  facts.governors.assign(governors.begin(), governors.end());
  return facts;
}

std::optional<double> read_cpu_quota(const fs::path& root) {
  const ControlGroups groups = control_groups(root, "cpu");
  const fs::path mount = root / "sys/fs/cgroup";
  std::optional<double> least;
  take_tightest_quota(mount, groups.v2, quota_in_v2, least);
  for (const char* controllers : {"cpu", "cpu,cpuacct"}) {
    take_tightest_quota(mount / controllers, groups.v1, quota_in_v1, least);
  }
  return least;
}

MemoryFacts read_memory(const fs::path& root) {
  MemoryFacts facts;
  const auto fields = fields_of(file_text(root / "proc/meminfo"), ":");
  const auto bytes = [&](const char* name) -> std::optional<int64_t> {
    const auto found = fields.find(name);
    if (found == fields.end()) return std::nullopt;
    const std::optional<int64_t> kibibytes = whole_number(found->second.substr(0, found->second.find(' ')));
    return kibibytes ? std::optional<int64_t>(*kibibytes * 1024) : std::nullopt;
  };
  facts.total_bytes = bytes("MemTotal");
  facts.available_bytes = bytes("MemAvailable");
  facts.swap_total_bytes = bytes("SwapTotal");
  facts.swap_free_bytes = bytes("SwapFree");
  const ControlGroupLimit group = control_group_limit(root);
  facts.limit_bytes = group.limit;
  facts.limit_used_bytes = group.used;
  facts.limit_cache_bytes = group.cache;
  const std::string pages = file_text(root / "sys/kernel/mm/transparent_hugepage/enabled");  // "always [madvise] never"
  const size_t open = pages.find('['), close = pages.find(']');
  if (open < close && close != std::string::npos) {
    facts.transparent_huge_pages = pages.substr(open + 1, close - open - 1);
  }
  return facts;
}

GpuFacts read_gpus(const fs::path& root) {
  GpuFacts facts;
  facts.has_nvidia = is_there(root / "dev/nvidiactl");
  facts.has_amd = is_there(root / "dev/kfd");
  facts.nvidia_driver = nvidia_version(file_text(root / "proc/driver/nvidia/version"));
  facts.amd_driver = trimmed(root / "sys/module/amdgpu/version");
  const fs::path nvidia = root / "proc/driver/nvidia/gpus";
  for (const std::string& address : names_in(nvidia)) {
    const auto fields = fields_of(file_text(nvidia / address / "information"), ":");
    const auto model = fields.find("Model");
    facts.devices.push_back(
        {.name = model == fields.end() ? "NVIDIA GPU" : model->second, .architecture = "", .memory_bytes = {}});
  }
  add_amd_devices(root, facts);
  return facts;
}

SystemFacts read_system(const fs::path& root) {
  SystemFacts facts;
  facts.host = trimmed(root / "proc/sys/kernel/hostname");
  facts.kernel = trimmed(root / "proc/sys/kernel/osrelease");
  facts.numa_balancing = whole_number(file_text(root / "proc/sys/kernel/numa_balancing"));
  for (const std::string& name : names_in(root / "sys/devices/system/node")) {
    if (is_numbered(name, "node")) ++facts.num_numa_nodes;
  }
  return facts;
}

LimitFacts read_limits(const fs::path& root) {
  LimitFacts facts;
  // "Max open files            1024                 1048576              files"
  for (const std::string& line : lines_of(file_text(root / "proc/self/limits"))) {
    const auto read = [&](std::string_view name, std::optional<int64_t>& soft, std::optional<int64_t>* hard) {
      if (!line.starts_with(name)) return;
      const std::vector<std::string> words = split_words(std::string_view(line).substr(name.size()));
      if (words.size() < 2) return;
      facts.is_known = true;
      soft = whole_number(words[0]);
      if (hard != nullptr) *hard = whole_number(words[1]);
    };
    read("Max open files", facts.open_files, &facts.open_files_hard);
    read("Max locked memory", facts.locked_bytes, nullptr);
    read("Max processes", facts.processes, nullptr);
  }
  return facts;
}

std::vector<RdmaPort> read_rdma_ports(const fs::path& root) {
  std::vector<RdmaPort> ports;
  const fs::path devices = root / "sys/class/infiniband";
  for (const std::string& device : names_in(devices)) {
    for (const std::string& number : names_in(devices / device / "ports")) {
      const std::optional<int64_t> port = whole_number(number);
      if (!port) continue;
      const fs::path folder = devices / device / "ports" / number;
      std::string state = trimmed(folder / "state");  // "4: ACTIVE"
      if (const size_t colon = state.find(": "); colon != std::string::npos) state.erase(0, colon + 2);
      ports.push_back({.device = device,
                       .port = static_cast<int>(*port),
                       .state = state,
                       .rate = trimmed(folder / "rate"),
                       .link_layer = trimmed(folder / "link_layer")});
    }
  }
  return ports;
}

std::optional<Mount> mount_of(const fs::path& root, const fs::path& path) {
  std::optional<Mount> best;
  const std::string wanted = path.lexically_normal().string();
  // "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
  for (const std::string& line : lines_of(file_text(root / "proc/self/mountinfo"))) {
    const std::vector<std::string> words = split_words(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 3) continue;
    const std::string point = unescaped(words[4]);
    const bool is_below = point == "/" || wanted == point || wanted.starts_with(point + "/");
    // Later mounts hide earlier ones.
    if (is_below && (!best || point.size() >= best->point.size())) best = Mount{point, dash[1], unescaped(dash[2])};
  }
  return best;
}

std::optional<SpaceFacts> read_space(const fs::path& folder) {
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) return std::nullopt;
  const auto block = static_cast<int64_t>(space.f_frsize);
  return SpaceFacts{.total_bytes = static_cast<int64_t>(space.f_blocks) * block,
                    .free_bytes = static_cast<int64_t>(space.f_bavail) * block,
                    .total_inodes = static_cast<int64_t>(space.f_files),
                    .free_inodes = static_cast<int64_t>(space.f_favail)};
}

}  // namespace megalith
