// The model in a checkpoint's configuration, compared with the present one.
#pragma once

#include <string>

#include "config/record.h"
#include "models/architecture.h"
#include "models/model_config.h"

namespace megalith {

// The architecture, plus stored options that do not affect weights.
ModelConfig model_config_of(const Configuration& architecture, const Configuration& configuration);

// UserError naming every differing field; none without a stored architecture. `where`: the checkpoint's folder.
void check_same_architecture(const Configuration& stored, const Configuration& present, const std::string& where);

}  // namespace megalith
