#include "train/task_rules.h"

#include <algorithm>

#include "core/error.h"
#include "core/number_of.h"
#include "train/picture_samples.h"
#include "train/samples.h"

namespace megalith {
namespace {

void check_samples(const Resolved& resolved, const Task& task, std::vector<UserError>& errors) {
  const Config& config = resolved.config;
  for (UserError& error : check_sample_options(config.samples)) errors.push_back(std::move(error));
  if (config.samples.is_on() && task.sample_kind() == SampleKind::kNone) {
    errors.emplace_back(fmt::format("sample_interval is given, and a model of task {} writes no text", task.name()),
                        "leave sample_interval out");
  }
  for (UserError& error : check_named_encoders(resolved)) errors.push_back(std::move(error));
}

}  // namespace

void check_pictures(const Config& config, Derived& d, std::vector<UserError>& errors) {
  const FluxDataOptions& flux = config.data.flux;
  d.seq_length = flux.image_tokens();
  const auto refuse = [&](bool is_wrong, const std::string& what, const std::string& remedy) {
    if (is_wrong) errors.emplace_back(what, remedy);
  };
  refuse(flux.image_size % 16 != 0,
         fmt::format("image_size {} is no multiple of 16, the pixels of a token", flux.image_size),
         fmt::format("set image_size to {} or {}", std::max<int64_t>(flux.image_size / 16, 1) * 16,
                     (flux.image_size / 16 + 1) * 16));
  refuse(config.parallel.context_parallel_size > 1,
         fmt::format("context_parallel_size is {}, and text and picture of model_type diffusion_model are one sequence "
                     "that no ranks share",
                     config.parallel.context_parallel_size),
         "set context_parallel_size to 1; tensor, pipeline and data parallelism take model_type diffusion_model");
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  refuse(config.sequence_parallel && (d.seq_length % tp != 0 || flux.text_length % tp != 0),
         fmt::format("sequence_parallel splits the {} tokens of a picture (image_size {}) and the {} of its text "
                     "(text_length) over tensor_model_parallel_size {} ranks, and they do not divide",
                     d.seq_length, flux.image_size, flux.text_length, tp),
         fmt::format("set text_length to a multiple of {0} and image_size to a multiple of {1}, or leave "
                     "sequence_parallel out",
                     tp, 16 * tp));
}

void check_task(const Resolved& resolved, std::vector<UserError>& errors) {
  const Config& config = resolved.config;
  if (config.model.is_diffusion() && config.task.task != TaskKind::kFlowMatching) {
    errors.emplace_back(fmt::format("task {} with model_type diffusion_model, which reads no tokens",
                                    resolved.options->of(config.task.task).text()),
                        "leave task out: such a model is trained by task flow_matching");
    return;
  }
  try {
    const std::unique_ptr<Task> task = make_task(config.task, make_task_setup(resolved));
    const std::vector<UserError> found = task->check(config.model, config.data);
    errors.insert(errors.end(), found.begin(), found.end());
    if (config.task.decoder_seq_length && config.task.task != TaskKind::kT5) {
      errors.emplace_back(fmt::format("decoder_seq_length is given, and task {} has no decoder's texts", task->name()),
                          "leave decoder_seq_length out, or set model_type to t5");
    }
    check_samples(resolved, *task, errors);
  } catch (const UserError& error) {
    errors.push_back(error);
  }
}

TaskSetup make_task_setup(const Resolved& resolved) {
  TaskSetup setup;
  setup.seed = static_cast<uint64_t>(resolved.config.train.seed);
  setup.vocab_size = resolved.derived.vocab_size;
  const SftOptions& sft = resolved.config.data.sft;
  setup.has_instructions = sft.has_paths();
  if (sft.has_pairs()) setup.dpo_beta = sft.dpo_beta;
  const ModelConfig& model = resolved.config.model;
  setup.has_sentence_head = model.model_type == ModelType::kBert && model.bert_binary_head;
  setup.samples_at_once = resolved.derived.micro_batch_size * resolved.derived.data_parallel_size;
  setup.top_ks = model.retriever_report_topk_accuracies;
  setup.flux_shape = {.latent_channels = model.in_channels / 4,
                      .context_dim = model.context_dim,
                      .vec_in_dim = model.vec_in_dim,
                      .image_size = resolved.config.data.flux.image_size,
                      .text_length = resolved.config.data.flux.text_length};
  setup.has_guidance = model.guidance_embed;
  setup.tokenizer = resolved.tokenizer.get();
  if (setup.tokenizer != nullptr) setup.special_ids = setup.tokenizer->special_ids();
  if (!setup.special_ids.eod) setup.special_ids.eod = narrow<int32_t>(resolved.derived.eod_id);
  return setup;
}

}  // namespace megalith
