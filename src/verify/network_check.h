// Checks that ranks can meet: interfaces, variables, MASTER_ADDR and port.
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

// Topic "ports". Call before ranks meet: rank 0 will listen there.
//   launch     without a launcher, problems of a later run are warnings
//   uses_gpus  NCCL's variables count
Findings check_network(const Launch& launch, bool uses_gpus, const EnvironmentMap& environment, const HostNetwork& host,
                       const TryListen& listen = try_listen);

}  // namespace megalith
