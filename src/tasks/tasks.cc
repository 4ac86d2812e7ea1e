// Every task there is; a new one is a class and a row here (docs/add_task.md).
#include <ATen/ops/stack.h>

#include <algorithm>

#include "tasks/bert.h"
#include "tasks/causal_lm.h"
#include "tasks/dpo.h"
#include "tasks/flow_matching.h"
#include "tasks/ict.h"
#include "tasks/masked_lm.h"
#include "tasks/t5.h"

namespace megalith {

at::Tensor sums_of_terms(const ModelOutput& output, const std::vector<std::string>& names) {
  std::vector<at::Tensor> rows;
  for (const std::string& name : names) {
    const auto term = std::ranges::find(output.terms, name, &LossTerm::name);
    MEGALITH_CHECK(term != output.terms.end(), "the model gives no {}", name);
    rows.push_back(at::stack({term->sum.to(at::kDouble), term->weight.to(at::kDouble)}));
  }
  return at::stack(rows);
}

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
