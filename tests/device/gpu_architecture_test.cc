// Chips that the compiled kernels run on, and chips that multiply numbers of eight bits.
#include "device/gpu_architecture.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/finding.h"

namespace megalith {
namespace {

using Built = std::vector<std::string>;

bool is_refused(const std::string& device, const Built& built) {
  try {
    (void)check_architecture(device, built);
    return false;
  } catch (const UserError& error) {
    EXPECT_NE(error.message().find(device), std::string::npos) << error.message();
    EXPECT_NE(error.message().find(built.front()), std::string::npos) << error.message();
    EXPECT_NE(error.remedy().find("ARCHITECTURES="), std::string::npos) << error.remedy();
    return true;
  }
}

TEST(GpuArchitecture, CodeOfAChipRunsOnLaterOnesOfItsGeneration) {
  const Built built = {"80-real", "90-real"};
  for (const std::string device : {"sm_80", "sm_86", "sm_89", "sm_90"}) {
    EXPECT_EQ(check_architecture(device, built), ArchitectureFit::kNative) << device;
  }
  for (const std::string device : {"sm_70", "sm_75", "sm_100", "sm_120"})
    EXPECT_TRUE(is_refused(device, built)) << device;
  EXPECT_TRUE(is_refused("sm_80", {"86"}));
}

TEST(GpuArchitecture, TheDriverCompilesForLaterGenerationsWhatIsNotOnlyCode) {
  EXPECT_EQ(check_architecture("sm_120", {"80", "90", "100"}), ArchitectureFit::kByDriver);
  EXPECT_EQ(check_architecture("sm_90", {"80-virtual"}), ArchitectureFit::kByDriver);
  EXPECT_EQ(check_architecture("sm_90", {"80", "90"}), ArchitectureFit::kNative);
  EXPECT_TRUE(is_refused("sm_75", {"80", "90", "100"}));
}

TEST(GpuArchitecture, CodeWithALetterIsForOneChip) {
  EXPECT_EQ(check_architecture("sm_90", {"90a"}), ArchitectureFit::kNative);
  EXPECT_TRUE(is_refused("sm_100", {"90a"}));
}

TEST(GpuArchitecture, AmdRunsOnlyItsOwn) {
  const Built built = {"gfx90a:xnack-", "gfx942"};
  EXPECT_EQ(check_architecture("gfx90a", built), ArchitectureFit::kNative);
  EXPECT_EQ(check_architecture("gfx942", built), ArchitectureFit::kNative);
  EXPECT_TRUE(is_refused("gfx950", built));
  EXPECT_TRUE(is_refused("gfx908", built));
}

TEST(GpuArchitecture, WhatIsNotKnownIsNotRefused) {
  EXPECT_EQ(check_architecture("", {"80"}), ArchitectureFit::kNative);
  EXPECT_EQ(check_architecture("sm_75", {}), ArchitectureFit::kNative);
  EXPECT_EQ(check_architecture("sm_75", {"native"}), ArchitectureFit::kNative);
  EXPECT_EQ(architecture_of(c10::kCPU), "");
}

TEST(GpuArchitecture, TheDoctorNamesWhatWasBuiltBesideTheChip) {
  const Built built = {"80", "90a"};
  const auto said = [&](const std::optional<std::string>& device) {
    const Finding finding = check_kernels(device, built);
    return std::string(name_of(finding.level)) + ": " + finding.found;
  };
  EXPECT_EQ(said(std::nullopt), "ok: compiled for sm_80, sm_90a");
  EXPECT_EQ(said("sm_90"), "ok: compiled for sm_80, sm_90a; this GPU is sm_90");
  EXPECT_EQ(
      said("sm_120"),
      "warning: compiled for sm_80, sm_90a; this GPU is sm_120, for which the driver compiles them at their first "
      "use");
  EXPECT_EQ(said("sm_75"), "error: compiled for sm_80, sm_90a; this GPU is sm_75, on which none of them runs");
  EXPECT_NE(check_kernels("sm_75", built).remedy.find("CMAKE_CUDA_ARCHITECTURES=75"), std::string::npos);
  EXPECT_EQ(said(""), "note: compiled for sm_80, sm_90a; the GPU does not say which it is");
  EXPECT_EQ(check_kernels("gfx942", {"gfx942"}).found, "compiled for gfx942; this GPU is gfx942");
  EXPECT_EQ(check_kernels(std::nullopt, {}).level, FindingLevel::kOk);
  EXPECT_EQ(check_kernels("sm_90", {}).level, FindingLevel::kWarning);
}

TEST(GpuArchitecture, EightBitProductsByChip) {
  for (const char* has : {"sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "gfx1201", ""}) {
    EXPECT_TRUE(has_fp8_products(has)) << has;
  }
  for (const char* lacks : {"sm_80", "sm_86", "sm_70", "gfx90a", "gfx908", "gfx1100"}) {
    EXPECT_FALSE(has_fp8_products(lacks)) << lacks;
  }
}

TEST(GpuArchitecture, EightBitsAreRefusedWhereTheChipHasNoneAndBothAreNamed) {
  for (const char* has : {"sm_90", "gfx950", ""}) EXPECT_NO_THROW(check_fp8_products(has, "hybrid")) << has;
  for (const std::string lacks : {"sm_80", "gfx90a"}) {
    try {
      check_fp8_products(lacks, "e4m3");
      ADD_FAILURE() << lacks << " was taken";
    } catch (const UserError& error) {
      EXPECT_EQ(error.message(), "fp8_format e4m3 needs a GPU that multiplies numbers of eight bits, and this one (" +
                                     lacks + ") does not");
      EXPECT_EQ(error.remedy(), "leave fp8_format out (bf16), or use a GPU of sm_89 or later, of gfx942 or later");
    }
  }
}

}  // namespace
}  // namespace megalith
