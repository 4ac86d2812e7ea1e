// The peaks of the makers' data sheets are found by the names that drivers tell.
#include "device/peak_flops.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

double tflops(std::string_view name, std::string_view architecture = "") {
  return known_peak_flops(name, architecture, at::kBFloat16).value_or(0) / 1e12;
}

TEST(PeakFlops, AreFoundByTheDriversNames) {
  EXPECT_EQ(tflops("NVIDIA H100 80GB HBM3", "sm_90"), 989.4);
  EXPECT_EQ(tflops("NVIDIA H100 PCIe", "sm_90"), 756);
  EXPECT_EQ(tflops("NVIDIA H200", "sm_90"), 989.4);
  EXPECT_EQ(tflops("NVIDIA H20", "sm_90"), 148) << "not taken for an H200";
  EXPECT_EQ(tflops("NVIDIA GH200 480GB", "sm_90"), 989.4);
  EXPECT_EQ(tflops("NVIDIA A100-SXM4-80GB", "sm_80"), 311.8);
  EXPECT_EQ(tflops("NVIDIA A10", "sm_86"), 125) << "not taken for an A100";
  EXPECT_EQ(tflops("NVIDIA B200", "sm_100"), 2250);
  EXPECT_EQ(tflops("NVIDIA GB200", "sm_100"), 2500);
  EXPECT_EQ(tflops("NVIDIA B300 SXM6 AC", "sm_103"), 2250);
  EXPECT_EQ(known_gpu("gb300")->memory_bytes >> 30, 268);
  EXPECT_EQ(tflops("AMD Instinct MI300X", "gfx942"), 1307.4);
  EXPECT_EQ(tflops("AMD Instinct MI300A", "gfx942"), 980.6);
  EXPECT_EQ(tflops("AMD Instinct MI250X", "gfx90a"), 191.5);
  EXPECT_EQ(tflops("AMD GPU", "gfx950"), 2306.9) << "by its architecture, where the driver tells no name";
}

TEST(PeakFlops, AreNotGuessed) {
  EXPECT_EQ(tflops("NVIDIA GeForce RTX 9999", "sm_999"), 0);
  EXPECT_EQ(tflops("", ""), 0);
  EXPECT_FALSE(known_peak_flops("NVIDIA H100 80GB HBM3", "sm_90", at::kFloat)) << "of fp32 there are several speeds";
  EXPECT_TRUE(known_peak_flops("NVIDIA H100 80GB HBM3", "sm_90", at::kHalf));
  EXPECT_FALSE(peak_flops(at::kCPU, at::kBFloat16));
}

}  // namespace
}  // namespace megalith
