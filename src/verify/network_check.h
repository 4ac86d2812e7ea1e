// Whether the ranks will find one another: network interfaces, the variables that name them, MASTER_ADDR and the port.
#pragma once

#include <functional>
#include <string>

#include "config/yaml_document.h"
#include "core/finding.h"
#include "launch/launch.h"
#include "launch/network.h"

namespace megalith {

// Opens and closes a socket that listens there; UserError when that cannot be.
using TryListen = std::function<void(const std::string& address, int port)>;
void try_listen(const std::string& address, int port);

// Findings of the topic "ports". To be called before the ranks meet, as rank 0 will listen there.
//   launch     as discovered. Without a launcher the variables are checked for a later run, and what would be wrong
//              only then is a warning
//   uses_gpus  whether GPUs are to talk, so that NCCL's variables are the ones that count
Findings check_network(const Launch& launch, bool uses_gpus, const EnvironmentMap& environment, const HostNetwork& host,
                       const TryListen& listen = try_listen);

}  // namespace megalith
