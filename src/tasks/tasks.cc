// Every task there is; a new one is a class and a row here.
#include "tasks/causal_lm.h"

namespace megalith {

std::unique_ptr<Task> make_task(const TaskOptions& options, const TaskSetup& /*setup*/) {
  switch (options.task) {
    case TaskKind::kCausalLm:
      return std::make_unique<CausalLm>();
  }
  throw InternalError("a task without a row here");
}

}  // namespace megalith
