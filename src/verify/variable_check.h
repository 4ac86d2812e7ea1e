// Environment variables of the underlying libraries, and their effect on a run.
#pragma once

#include <string>
#include <vector>

#include "config/yaml_document.h"
#include "core/finding.h"
#include "verify/machine_check.h"

namespace megalith {

// Variables that change a library's numbers or protocol, so they must agree on all ranks; not those on one machine's
// devices, interfaces, threads or files.
std::vector<std::string> shared_variables();

// Topic "environment": harmful variables as warnings, notable ones as notes, and a list of other known ones that are
// set.
//   usable_cores  of this machine
//   has_amd_gpus  ROCm's variables count
Findings check_variables(const EnvironmentMap& environment, const MachineUse& use, int usable_cores, bool has_amd_gpus);

}  // namespace megalith
