// Options of commands that take hub names.
#pragma once

#include "config/option.h"

namespace megalith {

struct HubOptions {
  double hub_timeout_minutes = 10;

  void visit(OptionVisitor& v);
};

}  // namespace megalith
