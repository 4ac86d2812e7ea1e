// Expected speeds by kind of GPU. Sources: AMD's "System acceptance" pages of MI210, MI250, MI300A, MI300X, MI325X,
// MI350X and MI355X (BabelStream, rocBLAS in fp32 at 4000, RCCL's all_reduce in GB/s of bus bandwidth); otherwise, and
// for bf16 products, a share of the data sheet.
#include <algorithm>
#include <array>

#include "device/peak_flops.h"
#include "verify/speed_check.h"

namespace megalith {
namespace {

// MI300X's acceptance figures are 69 to 79 % of its 5.3 TB/s.
constexpr double kMemoryShare = 0.7;
// Large random products run at power-limited clocks.
constexpr double kAmdProductShare = 0.45, kNvidiaProductShare = 0.6;

// 0: unpublished.
struct SpeedKind {
  std::string_view word;          // in the name
  std::string_view architecture;  // if the name is unknown
  double memory_tb_per_s;
  std::array<double, 5> stream;  // copy, scale, add, triad, dot in GB/s
  double fp32_tflops, all_reduce_bus;
};

// The first row with the word, or architecture, counts.
constexpr SpeedKind kSpeedKinds[] = {
    {"MI300X", "gfx942", 5.3, {4177.285, 4067.069, 3920.853, 3885.301, 3660.781}, 94.1, 304},
    {"MI325X", "gfx942", 6.0, {}, 94.1, 304},
    {"MI300A", "gfx942", 5.3, {2900, 3000, 3250, 3250, 2200}, 60, 0},
    {"MI350X", "gfx950", 8.0, {}, 0, 304},
    {"MI355X", "gfx950", 8.0, {}, 0, 304},
    {"MI250", "gfx90a", 1.6, {1200, 1200, 1100, 1100, 1200}, 30, 125},
    {"MI210", "gfx90a", 1.6, {1230, 1225, 1115, 1115, 1170}, 28, 0},
    {"GB200", "", 8.0, {}, 0, 0},
    {"B200", "", 8.0, {}, 0, 0},
    {"GH200", "", 4.0, {}, 0, 0},
    {"H200", "", 4.8, {}, 0, 0},
    {"H100 PCIe", "", 2.0, {}, 0, 0},
    {"H100 NVL", "", 3.9, {}, 0, 0},
    {"H100", "", 3.35, {}, 0, 0},
    {"H800", "", 3.35, {}, 0, 0},
    {"H20", "", 4.0, {}, 0, 0},
    {"A100-PCIE-40GB", "", 1.555, {}, 0, 0},
    {"A100-SXM4-40GB", "", 1.555, {}, 0, 0},
    {"A100", "", 1.935, {}, 0, 0},
    {"A800", "", 1.935, {}, 0, 0},
    {"L40S", "", 0.864, {}, 0, 0},
};

std::optional<double> if_known(double value) { return value > 0 ? std::optional<double>(value) : std::nullopt; }

}  // namespace

std::optional<ExpectedSpeeds> expected_speeds(std::string_view name, std::string_view architecture) {
  const auto begin = std::begin(kSpeedKinds), end = std::end(kSpeedKinds);
  auto kind = std::find_if(begin, end, [&](const SpeedKind& one) { return name.find(one.word) != name.npos; });
  if (kind == end && !architecture.empty()) {
    kind = std::find_if(begin, end, [&](const SpeedKind& one) { return one.architecture == architecture; });
  }
  if (kind == end) return std::nullopt;
  const bool is_amd = !kind->architecture.empty();
  ExpectedSpeeds speeds;
  speeds.kind = kind->word;
  if (const auto peak = known_peak_flops(kind->word, kind->architecture, at::kBFloat16)) {
    speeds.bf16_tflops = *peak / 1e12 * (is_amd ? kAmdProductShare : kNvidiaProductShare);
  }
  speeds.fp32_tflops = if_known(kind->fp32_tflops);
  std::optional<double>* const streams[] = {&speeds.copy, &speeds.scale, &speeds.add, &speeds.triad, &speeds.dot};
  for (size_t i = 0; i < std::size(streams); ++i) {
    *streams[i] = kind->stream[i] > 0 ? kind->stream[i] : kind->memory_tb_per_s * 1e3 * kMemoryShare;
  }
  speeds.all_reduce_bus = if_known(kind->all_reduce_bus);
  return speeds;
}

}  // namespace megalith
