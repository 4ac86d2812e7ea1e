// Asks ATen, so that both agree.
#include "ops/cpu/capability.h"

#include <ATen/Version.h>

#include <string>

namespace megalith::ops::cpu {

Capability current_capability() {
  static const Capability capability = [] {
    const std::string name = at::get_cpu_capability();
    if (name == "AVX512") return Capability::kAvx512;
    if (name == "AVX2") return Capability::kAvx2;
    return Capability::kDefault;
  }();
  return capability;
}

}  // namespace megalith::ops::cpu
