// Sources: NVIDIA's data sheets of A10, A30, A100, L4, L40S, H20, H100, H200, GH200, B200, B300, GB200, GB300; AMD's of
// MI210, MI250X (half of the card: a GPU is one of its two dies), MI300A, MI300X, MI325X, MI350X, MI355X. Memory as
// drivers report it, in whole GiB.
#include "device/peak_flops.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "core/strings.h"
#include "device/gpu_architecture.h"
#include "device/machine.h"

namespace megalith {
namespace {

struct GpuRow {
  std::string_view words;  // all must be in the name, in any order; empty: any name of the architecture
  std::string_view architecture;
  double tflops;
  int64_t memory_gib = 0;  // 0: several sizes
};

// The first match decides, so special rows precede general ones.
constexpr GpuRow kGpus[] = {
    {"GB300", "sm_103", 2500, 268},    {"B300", "sm_103", 2250, 268},
    {"GB200", "sm_100", 2500, 185},    {"B200", "sm_100", 2250, 179},   {"GH200", "sm_90", 989.4, 95},
    {"H200 NVL", "sm_90", 835.5, 140}, {"H200", "sm_90", 989.4, 140},   {"H100 PCIe", "sm_90", 756, 79},
    {"H100 NVL", "sm_90", 835, 93},    {"H100", "sm_90", 989.4, 79},    {"H20", "sm_90", 148, 95},
    {"H800 PCIe", "sm_90", 756, 79},   {"H800", "sm_90", 989.4, 79},    {"A100", "sm_80", 311.8, 79},
    {"A800", "sm_80", 311.8, 79},      {"A30", "sm_80", 165, 23},       {"A10G", "sm_86", 70, 22},
    {"A10", "sm_86", 125, 22},         {"L40S", "sm_89", 362, 44},      {"L40", "sm_89", 181, 44},
    {"L4", "sm_89", 121, 22},          {"MI355X", "gfx950", 2516.6, 288}, {"MI350X", "gfx950", 2306.9, 288},
    {"MI325X", "gfx942", 1307.4, 256}, {"MI300X", "gfx942", 1307.4, 192}, {"MI300A", "gfx942", 980.6, 128},
    {"MI250X", "gfx90a", 191.5, 64},   {"MI250", "gfx90a", 181, 64},    {"MI210", "gfx90a", 181, 64},
    {"", "gfx950", 2306.9},            {"", "gfx942", 1307.4},          {"", "gfx90a", 191.5},
};

// "A10" is not in "A100".
bool has_word(std::string_view name, std::string_view word) {
  const auto is_letter = [&](size_t i) {
    return i < name.size() && (std::isalnum(static_cast<unsigned char>(name[i])) != 0);
  };
  for (size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  }
  return false;
}

bool fits(const GpuRow& row, std::string_view name, std::string_view architecture) {
  if (row.words.empty()) return architecture == row.architecture;
  std::string_view rest = row.words;
  while (!rest.empty()) {
    const size_t blank = std::min(rest.find(' '), rest.size());
    if (!has_word(name, rest.substr(0, blank))) return false;
    rest.remove_prefix(std::min(blank + 1, rest.size()));
  }
  return true;
}

KnownGpu known(const GpuRow& row) {
  return {std::string(row.words), std::string(row.architecture), row.memory_gib * (int64_t{1} << 30)};
}

// The name of this machine's GPUs. Invisible ones are listed, too: names count only if alike.
std::string common_name() {
  std::string name;
  for (const GpuFacts::Device& one : read_gpus("/").devices) {
    if (!name.empty() && name != one.name) return "";
    name = one.name;
  }
  return name;
}

}  // namespace

std::optional<double> known_peak_flops(std::string_view name, std::string_view architecture, at::ScalarType dtype) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return std::nullopt;
  for (const GpuRow& row : kGpus) {
    if (fits(row, name, architecture)) return row.tflops * 1e12;
  }
  return std::nullopt;
}

std::optional<KnownGpu> known_gpu(std::string_view name) {
  const std::string wanted = lower_case(name);
  for (const GpuRow& row : kGpus) {
    if (row.memory_gib == 0 || lower_case(row.words) != wanted) continue;
    return known(row);
  }
  return std::nullopt;
}

std::vector<std::string> known_gpu_names() {
  std::vector<std::string> names;
  for (const GpuRow& row : kGpus) {
    if (row.memory_gib > 0) names.emplace_back(row.words);
  }
  return names;
}

std::optional<KnownGpu> gpu_of(const c10::Device& device) {
  if (device.is_cpu()) return std::nullopt;
  const std::string name = common_name(), architecture = architecture_of(device);
  for (const GpuRow& row : kGpus) {
    if (fits(row, name, architecture)) return row.memory_gib == 0 ? std::nullopt : std::optional(known(row));
  }
  return std::nullopt;
}

std::optional<double> peak_flops(const c10::Device& device, at::ScalarType dtype) {
  if (device.is_cpu()) return std::nullopt;
  return known_peak_flops(common_name(), architecture_of(device), dtype);
}

}  // namespace megalith
