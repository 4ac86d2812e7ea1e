// The table of model kinds.
#pragma once

#include "train/kind.h"

namespace megalith {

Kinds all_kinds();

}  // namespace megalith
