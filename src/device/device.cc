#include "device/device.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <c10/core/DeviceType.h>
#include <fmt/format.h>
#include <torch/version.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <sstream>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "device/machine.h"
#include "device/memory.h"
#include "device/own_products.h"
#include "device/threads.h"

namespace megalith {
namespace {

std::string cpu_name() {
  std::istringstream file(try_read_facts("/proc/cpuinfo").value_or(""));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) return std::string(trim(line.substr(colon + 1)));
  }
  return "of unknown make";
}

bool is_amd() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_AMD_ebx && edx == signature_AMD_edx;
#else
  return false;
#endif
}

}  // namespace

void DeviceOptions::visit(OptionVisitor& v) {
  v.group("Device", {.in_toy = InToy::kKept, .acts_in = kWithModel});
  v.choice("device", device, {"auto", "cpu", "gpu"}, "Where to compute; auto: on an accelerator when there is one.")
      .by_rank(ByRank::kFree);
  v.field("deterministic_mode", deterministic_mode,
          "Use only algorithms whose results do not vary from run to run; slower on a GPU.");
  v.field("fail_on_host_sync", fail_on_host_sync,
          "End the run, and name the place, when the host waits for the GPU in a training step but the first.")
      .changes_numbers(false)
      .acts_in(kTrainOnly);
}

int accelerator_count() { return at::accelerator::deviceCount(); }

int accelerator_index(int local_rank, int num_visible, int num_of_machine) {
  if (num_visible == 1 && num_of_machine != 1) return 0;
  if (local_rank >= num_visible) {
    throw UserError(fmt::format("rank {} of this machine has no accelerator: there are {}", local_rank, num_visible),
                    fmt::format("start at most {} rank(s) on a machine, or use --device cpu", num_visible));
  }
  return local_rank;
}

c10::Device select_device(DeviceChoice choice, int local_rank) {
  const int count = accelerator_count();
  if (choice == DeviceChoice::kCpu || (choice == DeviceChoice::kAuto && count == 0)) return c10::Device(c10::kCPU);
  if (count == 0) {
    throw UserError(fmt::format("device gpu was asked for, but LibTorch {} sees no accelerator here", TORCH_VERSION),
                    "use --device cpu, or a CUDA or ROCm build of LibTorch on a machine with a GPU and its driver");
  }
  const int num_listed = narrow<int>(read_gpus("/").devices.size());
  const auto index = narrow<c10::DeviceIndex>(accelerator_index(local_rank, count, num_listed));
  at::accelerator::setDeviceIndex(index);
  return c10::Device(*at::accelerator::getAccelerator(), index);
}

CpuFeatures cpu_features() {
  CpuFeatures features;
#if defined(__x86_64__)
  // The built-ins also check the system's support; gcc 12 has no name for AMX.
  __builtin_cpu_init();
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  features.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (features.avx512 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) features.avx512_bf16 = (eax >> 5) & 1u;
  if (features.avx512 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    const bool has_tiles = ((edx >> 22) & 1u) && ((edx >> 24) & 1u);  // AMX-BF16, AMX-TILE
    unsigned low = 0, high = 0;
    if (has_tiles) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    features.amx_bf16 = has_tiles && ((low >> 17) & 3u) == 3u;  // XCR0: tile configuration and data
  }
#elif defined(__aarch64__)
  constexpr unsigned long kHwcap2Bf16 = 1ul << 14;
  features.arm_bf16 = getauxval(AT_HWCAP2) & kHwcap2Bf16;
#endif
  return features;
}

bool has_native_bf16(const c10::Device& device) {
  if (!device.is_cpu()) return true;
  const CpuFeatures features = cpu_features();
  return features.amx_bf16 || features.avx512_bf16 || features.arm_bf16;
}

bool has_own_fp32_products() {
  static const bool has = is_amd() && at::get_cpu_capability() == "AVX512";
  return has;
}

bool enable_amx() { return cpu_features().amx_bf16 && at::cpu::init_amx(); }

std::string describe_device(const c10::Device& device) {
  const std::string memory = format_bytes(memory_stats(device).total_bytes);
  if (!device.is_cpu()) {
    return fmt::format("GPU {} of {} ({}), {}", static_cast<int>(device.index()), accelerator_count(),
                       c10::DeviceTypeName(device.type(), /*lower_case=*/true), memory);
  }
  const CpuFeatures features = cpu_features();
  const char* math = features.amx_bf16      ? "AMX bf16"
                     : features.avx512_bf16 ? "AVX-512 bf16"
                     : features.avx512      ? "AVX-512 without bf16"
                     : features.avx2        ? "AVX2 without bf16"
                     : features.arm_bf16    ? "Arm bf16"
                                            : "no bf16";
  const int cores = usable_cores();
  return fmt::format("CPU {}, {} core{}, {}{}, {}", cpu_name(), cores, cores == 1 ? "" : "s", math,
                     has_own_fp32_products() ? ", own fp32 products" : "", memory);
}

}  // namespace megalith
