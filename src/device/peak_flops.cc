// Sources: NVIDIA's data sheets of A10, A30, A100, L4, L40S, H20, H100, H200, GH200, B200 and GB200; AMD's of MI210,
// MI250X (half of the card: a GPU is one of its two dies), MI300A, MI300X, MI325X, MI350X, MI355X.
#include "device/peak_flops.h"

#include <algorithm>
#include <string>

#include "device/gpu_architecture.h"
#include "device/machine.h"

namespace megalith {
namespace {

struct PeakRow {
  std::string_view words;  // all must be in the name, in any order
  std::string_view architecture;
  double tflops;
};

// The first match decides, so special rows precede general ones.
constexpr PeakRow kPeaks[] = {
    {"GB200", "", 2500},    {"B200", "", 2250},     {"GH200", "", 989.4},   {"H200 NVL", "", 835.5},
    {"H200", "", 989.4},    {"H100 PCIe", "", 756}, {"H100 NVL", "", 835},  {"H100", "", 989.4},
    {"H20", "", 148},       {"H800 PCIe", "", 756}, {"H800", "", 989.4},    {"A100", "", 311.8},
    {"A800", "", 311.8},    {"A30", "", 165},       {"A10G", "", 70},       {"A10", "", 125},
    {"L40S", "", 362},      {"L40", "", 181},       {"L4", "", 121},        {"MI355X", "", 2516.6},
    {"MI350X", "", 2306.9}, {"MI300A", "", 980.6},  {"MI250X", "", 191.5},  {"MI250", "", 181},
    {"MI210", "", 181},     {"", "gfx950", 2306.9}, {"", "gfx942", 1307.4}, {"", "gfx90a", 191.5},
};

// True if the name contains the whole word: "A10" is not in "A100".
bool has_word(std::string_view name, std::string_view word) {
  const auto is_letter = [&](size_t i) {
    return i < name.size() && (std::isalnum(static_cast<unsigned char>(name[i])) != 0);
  };
  for (size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  }
  return false;
}

bool fits(const PeakRow& row, std::string_view name, std::string_view architecture) {
  if (row.words.empty()) return architecture == row.architecture;
  std::string_view rest = row.words;
  while (!rest.empty()) {
    const size_t blank = std::min(rest.find(' '), rest.size());
    if (!has_word(name, rest.substr(0, blank))) return false;
    rest.remove_prefix(std::min(blank + 1, rest.size()));
  }
  return true;
}

}  // namespace

std::optional<double> known_peak_flops(std::string_view name, std::string_view architecture, at::ScalarType dtype) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return std::nullopt;
  for (const PeakRow& row : kPeaks) {
    if (fits(row, name, architecture)) return row.tflops * 1e12;
  }
  return std::nullopt;
}

std::optional<double> peak_flops(const c10::Device& device, at::ScalarType dtype) {
  if (device.is_cpu()) return std::nullopt;
  // The process may not see all GPUs: the name is known only if all are of one kind.
  std::string name;
  for (const GpuFacts::Device& one : read_gpus("/").devices) {
    if (!name.empty() && name != one.name) return known_peak_flops("", architecture_of(device), dtype);
    name = one.name;
  }
  return known_peak_flops(name, architecture_of(device), dtype);
}

}  // namespace megalith
