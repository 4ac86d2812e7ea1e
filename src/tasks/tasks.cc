// Every task there is; a new one is a class and a row here (docs/add_task.md).
#include "tasks/causal_lm.h"
#include "tasks/masked_lm.h"

namespace megalith {

std::unique_ptr<Task> make_task(const TaskOptions& options, const TaskSetup& setup) {
  switch (options.task) {
    case TaskKind::kCausalLm:
      return std::make_unique<CausalLm>();
    case TaskKind::kMaskedLm:
      return std::make_unique<MaskedLm>(options, setup);
  }
  throw InternalError("a task without a row here");
}

}  // namespace megalith
