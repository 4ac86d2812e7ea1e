// Environment variables of underlying libraries, and their effects.
#pragma once

#include <string>
#include <vector>

#include "config/yaml_document.h"
#include "core/finding.h"
#include "verify/machine_check.h"

namespace megalith {

// Variables that change a library's numbers or protocol: all ranks must agree. Not those of one machine's devices,
// interfaces, threads or files.
std::vector<std::string> shared_variables();

// Topic "environment": harmful ones as warnings, notable ones as notes, other known ones as a list.
//   has_amd_gpus  ROCm's variables count
Findings check_variables(const EnvironmentMap& environment, const MachineUse& use, int usable_cores, bool has_amd_gpus);

}  // namespace megalith
