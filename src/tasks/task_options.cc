// See task_options.h.
#include "tasks/task_options.h"

namespace megalith {

void TaskOptions::visit(OptionVisitor& v) {
  v.group("Task");
  v.choice("task", task, {"causal_lm"}, "What the model learns. causal_lm: the next token of a text.");
}

}  // namespace megalith
