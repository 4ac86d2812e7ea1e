#include "kinds/retrieval/ict.h"

#include <ATen/ATen.h>

#include "device/transfer.h"
#include "kinds/retrieval/ict_samples.h"
#include "models/biencoder.h"
#include "nn/retrieval_head.h"

namespace megalith {

IctTask::IctTask(const TaskOptions& options, const TaskSetup& setup)
    : SentenceTask(options, setup, "ict"), samples_at_once_(setup.samples_at_once), top_ks_(setup.top_ks) {}

std::vector<UserError> IctTask::check(const ModelConfig& model, const DataOptions& data) const {
  std::vector<UserError> errors = SentenceTask::check(model, data);
  if (model.model_type != ModelType::kBiencoder) {
    errors.emplace_back("task ict compares vectors of questions and texts, and model_type is another than biencoder",
                        "set model_type to biencoder, or take another task");
  }
  if (options_.titles_data_path && data.mock_data) {
    errors.emplace_back("titles_data_path is given with mock_data, whose texts have no titles",
                        "leave one of them out");
  } else if (options_.titles_data_path && (data.data_path.size() != 1 || data.has_split_paths())) {
    errors.emplace_back("titles_data_path has the titles of one data set, and data_path does not name one",
                        "give one prefix in data_path, and its parts with split");
  }
  // A command without data has no set.
  if (samples_at_once_ == 1 && (data.mock_data || data.has_paths())) {
    errors.emplace_back(
        "task ict with a set of one sample (micro_batch_size 1 on one data-parallel rank): there is no other text to "
        "tell the right one from, and the loss is always 0",
        "raise micro_batch_size: a microbatch of all data-parallel ranks is one set");
  }
  for (const int64_t k : top_ks_) {
    if (samples_at_once_ == 0 || k <= samples_at_once_) continue;
    errors.emplace_back(fmt::format("retriever_report_topk_accuracies has {}, and a set has {} samples (a microbatch "
                                    "of all data-parallel ranks)",
                                    k, samples_at_once_),
                        "leave it out, or raise micro_batch_size");
  }
  return errors;
}

void IctTask::draw(Batch& rows) const {
  if (rows.has(field::kQueryTokens)) return;
  const int64_t b = rows.num_rows(), s = rows.length(field::kTokens);
  const at::Tensor text_lengths = at::empty({b}, at::kLong), order = rows.at(field::kSampleIndex).contiguous();
  for (int64_t row = 0; row < b; ++row) {
    text_lengths.mutable_data_ptr<int64_t>()[row] = drawn_length(order.const_data_ptr<int64_t>()[row], s + 1, s);
  }
  draw_second_text(rows, field::kQueryTokens, field::kQueryKeyLengths);
  rows.set(BatchField::of_rows(field::kKeyLengths, text_lengths));
}

std::vector<double> IctTask::count_weights(const Batch& part) const { return {static_cast<double>(part.num_rows())}; }

ModelInput IctTask::make_input(const Batch& part, at::Device device, std::span<const Unit> units) const {
  ModelInput input = SentenceTask::make_input(part, device, units);
  input.more.set(input::kQueryTokens.name, sent_to(part.at(field::kQueryTokens), device));
  input.more.set(input::kQueryKeyLengths.name, sent_to(part.at(field::kQueryKeyLengths), device));
  const PairRowIds ids = pair_row_ids(part, field::kQueryTokens, field::kTokens, device);
  input.more.set(input::kQueryRowIds.name, ids.first);
  input.context.row_ids = ids.second;
  // Without a training step's factor.
  input.terms = {{.name = loss_names()[0], .per_weight = {}}};
  return input;
}

std::vector<std::string> IctTask::evaluated_names() const {
  std::vector<std::string> names = loss_names();
  for (const int64_t k : top_ks_) names.push_back(top_k_name(k));
  return names;
}

at::Tensor IctTask::evaluate(const Batch& /*part*/, const ModelOutput& output) const {
  return sums_of_terms(output, evaluated_names());
}

std::vector<NeededToken> IctTask::needed_tokens(const SpecialIds& ids) const {
  return {{"[CLS]", ids.cls.has_value()}, {"[SEP]", ids.sep.has_value()}};
}

std::shared_ptr<const SampleMaker> IctTask::make_samples(int64_t sequence_length, SentenceVocabulary vocabulary) const {
  return make_ict_samples({.sequence_length = sequence_length,
                           .query_in_block_prob = options_.query_in_block_prob,
                           .takes_single_sentences = options_.use_one_sent_docs,
                           .titles = options_.titles_data_path.value_or("")},
                          std::move(vocabulary));
}

}  // namespace megalith
