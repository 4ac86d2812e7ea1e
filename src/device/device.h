// The device of a rank and its features.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace megalith {

class OptionVisitor;

enum class DeviceChoice { kAuto, kCpu, kGpu };

struct DeviceOptions {
  DeviceChoice device = DeviceChoice::kAuto;
  bool deterministic_mode = false;
  bool fail_on_host_sync = false;

  void visit(OptionVisitor& visitor);
};

// NVIDIA or AMD GPUs that this LibTorch can use; 0 for a CPU build or without a driver.
int accelerator_count();

// The index of a rank's accelerator among those visible: its rank on the machine, or 0 if its process sees only one.
// UserError if there are too few.
//   num_of_machine  GPUs that the driver lists, visible or not; 0 if it lists none
int accelerator_index(int local_rank, int num_visible, int num_of_machine);

// The rank's device, made current. kAuto prefers an accelerator. UserError: kGpu without an accelerator, or too few.
c10::Device select_device(DeviceChoice choice, int local_rank);

struct CpuFeatures {
  bool avx2 = false;
  bool avx512 = false;       // F, BW, DQ and VL together, as ATen's AVX512 kernels need them
  bool avx512_bf16 = false;  // dot products of bf16
  bool amx_bf16 = false;     // tiles of bf16
  bool arm_bf16 = false;     // dot products and small matrices of bf16
};
CpuFeatures cpu_features();

// True if bf16 matrix products are at least as fast as fp32: AMX, AVX512_BF16 or Arm's bf16 on a CPU; every accelerator
// from NVIDIA's Ampere and AMD's CDNA on.
bool has_native_bf16(const c10::Device& device);

// Asks the kernel's permission to use AMX tiles; true if granted. For main functions, before threads start.
bool enable_amx();

// For the start-up report: "CPU Intel(R) Xeon(R) Platinum 8488C, 2 cores, AMX bf16, 24 GiB", "GPU 3 of 8 (cuda), 139
// GiB".
std::string describe_device(const c10::Device& device);

}  // namespace megalith
