// The kinds of models that there are.
#pragma once

#include "train/kind.h"

namespace megalith {

Kinds all_kinds();

}  // namespace megalith
