// A rank's device.
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

// NVIDIA and AMD GPUs that LibTorch can use.
int accelerator_count();

// The rank on the machine, or 0 if the process sees one of several GPUs. UserError if there are too few.
//   num_of_machine  GPUs the driver lists; 0 if none
int accelerator_index(int local_rank, int num_visible, int num_of_machine);

// Makes the device current. UserError: kGpu without an accelerator, or too few.
c10::Device select_device(DeviceChoice choice, int local_rank);

struct CpuFeatures {
  bool avx2 = false;
  bool avx512 = false;  // F, BW, DQ and VL, as ATen's kernels need
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
  bool arm_bf16 = false;
};
CpuFeatures cpu_features();

// True if bf16 matrix products are at least as fast as fp32; assumed of every accelerator.
bool has_native_bf16(const c10::Device& device);

// Asks the kernel for AMX tiles; true if granted. Call before threads start.
bool enable_amx();

// "CPU Intel(R) Xeon(R) Platinum 8488C, 2 cores, AMX bf16, 24 GiB".
std::string describe_device(const c10::Device& device);

}  // namespace megalith
