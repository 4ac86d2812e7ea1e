// Environment variables that the libraries below us read, and how those that are set affect a run.
#pragma once

#include <string>
#include <vector>

#include "config/yaml_document.h"
#include "core/finding.h"
#include "verify/machine_check.h"

namespace megalith {

// Variables that change a library's numbers, or what it says to other ranks: they must be the same for all. Those about
// the devices, interfaces, threads and files of one machine are not among them.
std::vector<std::string> shared_variables();

// Findings of the topic "environment": variables that slow or hinder a run as warnings, those worth knowing as notes,
// and a list of the other known ones that are set.
//   usable_cores  of this machine
//   has_amd_gpus  whether ROCm's variables count
Findings check_variables(const EnvironmentMap& environment, const MachineUse& use, int usable_cores, bool has_amd_gpus);

}  // namespace megalith
