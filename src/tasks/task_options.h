// Which task a run trains, and the options of the tasks.
#pragma once

#include "config/option.h"

namespace megalith {

enum class TaskKind { kCausalLm };

struct TaskOptions {
  TaskKind task = TaskKind::kCausalLm;

  void visit(OptionVisitor& v);
};

}  // namespace megalith
