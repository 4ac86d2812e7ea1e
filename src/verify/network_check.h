// Checks that ranks can meet: interfaces, their variables, MASTER_ADDR and the port.
#pragma once

#include <functional>
#include <string>

#include "config/yaml_document.h"
#include "core/finding.h"
#include "launch/launch.h"
#include "launch/network.h"

namespace megalith {

// Opens and closes a listening socket; UserError on failure.
using TryListen = std::function<void(const std::string& address, int port)>;
void try_listen(const std::string& address, int port);

// Findings of topic "ports". Call before ranks meet, because rank 0 will listen there.
//   launch     without a launcher the variables are checked for a later run, whose problems are warnings
//   uses_gpus  NCCL's variables count
Findings check_network(const Launch& launch, bool uses_gpus, const EnvironmentMap& environment, const HostNetwork& host,
                       const TryListen& listen = try_listen);

}  // namespace megalith
