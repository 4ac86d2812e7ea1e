// A new task is a class and a row here (docs/add_task.md); see tasks.h.
#include "kinds/tasks.h"

#include <ATen/ops/stack.h>

#include <algorithm>

#include "core/collect_errors.h"
#include "core/error.h"
#include "core/number_of.h"
#include "kinds/classifier/classification.h"
#include "kinds/encoder/bert.h"
#include "kinds/encoder/masked_lm.h"
#include "kinds/flow/flow_matching.h"
#include "kinds/flow/flux_data.h"
#include "kinds/retrieval/ict.h"
#include "kinds/seq2seq/t5.h"
#include "kinds/text/causal_lm.h"
#include "kinds/text/dpo.h"

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
  if (setup.has_instructions && setup.kto) {
    return std::make_unique<Kto>(setup.dpo_beta.value(), *setup.kto, setup.set_names);
  }
  if (setup.has_instructions && setup.dpo_beta) return std::make_unique<Dpo>(*setup.dpo_beta, setup.set_names);
  if (setup.has_instructions) return std::make_unique<Sft>(setup.set_names);
  switch (options.task) {
    case TaskKind::kCausalLm:
      return std::make_unique<CausalLm>(setup.set_names);
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
    case TaskKind::kClassification:
      return std::make_unique<Classification>(setup);
  }
  throw InternalError("a task without a row here");
}

TaskSetup make_task_setup(const Resolved& resolved) {
  TaskSetup setup;
  setup.seed = static_cast<uint64_t>(resolved.config.train.seed);
  setup.vocab_size = resolved.derived.vocab_size;
  const SftOptions& sft = resolved.config.data.sft;
  setup.has_instructions = sft.has_paths();
  std::vector<UserError> told;  // by check_data_options()
  collect(told, [&] {
    for (const TrainingSet& set : sft.training_sets()) setup.set_names.push_back(set.name);
    if (!setup.has_instructions) setup.set_names = resolved.config.data.data_set_names;
  });
  if (sft.has_pairs()) setup.dpo_beta = sft.dpo_beta;
  if (sft.loss == SftLoss::kKto) setup.kto = KtoWeights{sft.kto_desirable_weight, sft.kto_undesirable_weight};
  const ModelConfig& model = resolved.config.model;
  setup.has_sentence_head = model.has_sentence_head();
  setup.samples_at_once = resolved.derived.micro_batch_size * resolved.derived.data_parallel_size;
  setup.top_ks = model.retriever_report_topk_accuracies;
  setup.flux_shape = flux_sample_shape(model, resolved.config.data.flux);
  setup.has_guidance = model.guidance_embed;
  if (model.model_type == ModelType::kClassifier) setup.classifier = model;
  setup.global_batch_size = resolved.derived.global_batch_size;
  setup.tokenizer = resolved.tokenizer.get();
  if (setup.tokenizer != nullptr) setup.special_ids = setup.tokenizer->special_ids();
  if (!setup.special_ids.eod) setup.special_ids.eod = narrow<int32_t>(resolved.derived.eod_id);
  return setup;
}

void check_task_rules(const Resolved& resolved, std::vector<UserError>& errors) {
  const Config& config = resolved.config;
  try {
    const std::unique_ptr<Task> task = make_task(config.task, make_task_setup(resolved));
    const std::vector<UserError> found = task->check(config.model, config.data);
    errors.insert(errors.end(), found.begin(), found.end());
    if (config.task.decoder_seq_length && config.task.task != TaskKind::kT5) {
      errors.emplace_back(fmt::format("decoder_seq_length is given, and task {} has no decoder's texts", task->name()),
                          "leave decoder_seq_length out, or set model_type to t5");
    }
    if (!config.data.data_set_names.empty() && config.task.task != TaskKind::kCausalLm) {
      errors.emplace_back(fmt::format("data_set_names is given, and task {} has no losses of sets", task->name()),
                          "leave data_set_names out");
    }
    for (UserError& error : check_sample_options(config.samples)) errors.push_back(std::move(error));
    if (config.samples.is_on() && task->sample_kind() == SampleKind::kNone) {
      errors.emplace_back(fmt::format("sample_interval is given, and a model of task {} writes no text", task->name()),
                          "leave sample_interval out");
    }
  } catch (const UserError& error) {
    errors.push_back(error);
  }
}

}  // namespace megalith
