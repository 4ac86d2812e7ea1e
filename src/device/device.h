// Which device a rank computes on, and what that device is good at.
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

// The accelerators that this LibTorch can use now: NVIDIA's or AMD's GPUs, 0 for a CPU build or without a driver.
int accelerator_count();

// The number of a rank's accelerator among those that its process sees: the rank's number on its machine, or 0 where
// the launcher shows each process one of its own. UserError when there are fewer.
//   num_of_machine  GPUs that the driver lists, whoever may see them; 0 where it lists none
int accelerator_index(int local_rank, int num_visible, int num_of_machine);

// The rank's device, made current: the CPU, or the accelerator with the number of accelerator_index(). kAuto takes an
// accelerator when there is one. UserError: kGpu without an accelerator, or too few of them.
c10::Device select_device(DeviceChoice choice, int local_rank);

// What the processor can multiply in hardware, as the operating system allows it.
struct CpuFeatures {
  bool avx2 = false;
  bool avx512 = false;       // F, BW, DQ and VL together, as ATen's AVX512 kernels need them
  bool avx512_bf16 = false;  // dot products of bf16
  bool amx_bf16 = false;     // tiles of bf16
  bool arm_bf16 = false;     // dot products and small matrices of bf16
};
CpuFeatures cpu_features();

// Whether matrix products of bf16 run at least as fast as those of fp32: AMX, AVX512_BF16 or Arm's bf16 on a CPU; every
// accelerator from NVIDIA's Ampere and AMD's CDNA on.
bool has_native_bf16(const c10::Device& device);

// Asks the kernel for the AMX tiles, which a process may not touch otherwise; true when AMX can be used. For main
// functions, before threads start.
bool enable_amx();

// For the start-up report: "CPU Intel(R) Xeon(R) Platinum 8488C, 2 cores, AMX bf16, 24 GiB", "GPU 3 of 8 (cuda), 139
// GiB".
std::string describe_device(const c10::Device& device);

}  // namespace megalith
