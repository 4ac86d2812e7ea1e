// Every task there is; a new one is a class and a row here (docs/add_task.md).
#include "tasks/bert.h"
#include "tasks/causal_lm.h"
#include "tasks/dpo.h"
#include "tasks/flow_matching.h"
#include "tasks/ict.h"
#include "tasks/masked_lm.h"
#include "tasks/sft.h"
#include "tasks/t5.h"

namespace megalith {

std::unique_ptr<Task> make_task(const TaskOptions& options, const TaskSetup& setup) {
  if (setup.has_instructions && options.task != TaskKind::kCausalLm) {
    throw UserError("sft_data_path is given with a task other than causal_lm",
                    "answers are learned token by token: leave task out");
  }
  if (setup.has_instructions && setup.dpo_beta) return std::make_unique<Dpo>(*setup.dpo_beta);
  if (setup.has_instructions) return std::make_unique<Sft>();
  switch (options.task) {
    case TaskKind::kCausalLm:
      return std::make_unique<CausalLm>();
    case TaskKind::kMaskedLm:
      return std::make_unique<MaskedLm>(options, setup);
    case TaskKind::kBert:
      return std::make_unique<BertTask>(options, setup);
    case TaskKind::kT5:
      return std::make_unique<T5Task>(options, setup);
    case TaskKind::kIct:
      return std::make_unique<IctTask>(options, setup);
    case TaskKind::kFlowMatching:
      return std::make_unique<FlowMatching>(options, setup);
  }
  throw InternalError("a task without a row here");
}

}  // namespace megalith
