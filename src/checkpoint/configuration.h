// The configuration in a checkpoint: which model it describes, and whether that is the present one.
#pragma once

#include <string>

#include "config/record.h"
#include "models/architecture.h"
#include "models/model_config.h"

namespace megalith {

// A checkpoint's model: its stored architecture, and from the stored configuration the options that do not change
// weights.
ModelConfig model_config_of(const Configuration& architecture, const Configuration& configuration);

// UserError that names every field that differs. `where` is the checkpoint's folder. Without a stored architecture
// there is nothing to compare.
void check_same_architecture(const Configuration& stored, const Configuration& present, const std::string& where);

}  // namespace megalith
