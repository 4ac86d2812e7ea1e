// The configuration in a checkpoint: the model that it describes, compared with the present one.
#pragma once

#include <string>

#include "config/record.h"
#include "models/architecture.h"
#include "models/model_config.h"

namespace megalith {

// A checkpoint's model: its stored architecture, plus the stored options that do not affect weights.
ModelConfig model_config_of(const Configuration& architecture, const Configuration& configuration);

// UserError naming every differing field. `where` is the checkpoint's folder. Without a stored architecture nothing is
// compared.
void check_same_architecture(const Configuration& stored, const Configuration& present, const std::string& where);

}  // namespace megalith
