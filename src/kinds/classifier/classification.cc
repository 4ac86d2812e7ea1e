#include "kinds/classifier/classification.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "core/philox.h"
#include "data/split.h"
#include "device/transfer.h"
#include "kinds/classifier/class_measures.h"
#include "kinds/encoder/drawn_segments.h"
#include "kinds/encoder/masked_samples.h"
#include "models/classifier_head.h"
#include "models/transformer.h"

namespace megalith {
namespace {

constexpr int64_t kMadeUpNumbers = 5;

// The paths of one split.
const std::vector<std::string>& own_paths(const DataOptions& options, Split split) {
  return split == Split::kTrain   ? options.train_data_path
         : split == Split::kValid ? options.valid_data_path
                                  : options.test_data_path;
}

ModelConfig classifier_of(const TaskSetup& setup) {
  if (setup.classifier) return *setup.classifier;
  throw UserError("task classification is of a classifier, and model_type is another",
                  "set model_type to classifier, or take another task");
}

}  // namespace

Classification::Classification(const TaskSetup& setup)
    : model_(classifier_of(setup)),
      is_bert_(model_.is_of_encoders()),
      vocab_size_(setup.vocab_size),
      rows_at_once_(std::max<int64_t>(setup.global_batch_size, 1)),
      tokenizer_(setup.tokenizer),
      key_(make_philox_key(setup.seed, "classification")) {}

std::vector<UserError> Classification::check(const ModelConfig& /*model*/, const DataOptions& data) const {
  std::vector<UserError> errors;
  if (data.has_paths() && tokenizer_ == nullptr) {
    errors.emplace_back("task classification reads texts, and no tokenizer is named",
                        "load a published model with --load_hf, which brings its tokenizer, or give --tokenizer_model");
  }
  return errors;
}

ClassSampleOptions Classification::sample_options(const DataOptions& options, int64_t sequence_length) const {
  return {.classes = model_,
          .is_bert = is_bert_,
          .truncates = options.sft.truncate,
          .sequence_length = sequence_length,
          .vocab_size = vocab_size_};
}

std::shared_ptr<const ClassSamples> Classification::read(const std::vector<std::string>& paths,
                                                         const DataOptions& options, int64_t sequence_length) const {
  MEGALITH_CHECK(tokenizer_ != nullptr, "texts without a tokenizer");
  return std::make_shared<const ClassSamples>(
      encode_class_rows(paths, *tokenizer_, sample_options(options, sequence_length)));
}

DataSets Classification::open_data(const DataOptions& given, const DataSetup& setup, Logger& log) const {
  const DataOptions options = with_listed_paths(given);
  if (options.mock_data || !options.has_paths()) return TextTask::open_data(options, setup, log);
  const std::string split = options.split.value_or(kDefaultSplit);
  std::shared_ptr<const ClassSamples> shared;
  if (!options.data_path.empty()) {
    if (!options.split) log.note("split is not given: {} of data_path go to training, validation and test", split);
    shared = read(options.data_path, options, setup.sequence_length);
  }
  return make_splits(setup, [&](Split part, std::optional<int64_t> /*num_samples*/) -> std::unique_ptr<BatchSource> {
    const std::vector<std::string>& paths = shared ? options.data_path : own_paths(options, part);
    if (paths.empty()) return nullptr;
    const auto samples = shared ? shared : read(paths, options, setup.sequence_length);
    ElementRange range{0, std::ssize(*samples)};
    if (shared) {
      range = split_ranges(parse_split(split), range.end)[static_cast<size_t>(part)].value_or(ElementRange{});
    }
    if (range.size() == 0) {
      log.note("the rows are too few for a {} split of {}: there is none", split_name(part), split);
      return nullptr;
    }
    const bool is_training = part == Split::kTrain;
    ClassSampleOptions how = sample_options(options, setup.sequence_length);
    // An evaluation reads each row once: rows beyond the last have weight 0.
    if (!is_training) how.rows_at_once = rows_at_once_;
    const std::string name = fmt::format("{}", fmt::join(paths, ", "));
    const auto rows = make_class_reader(samples, range.begin, range.end, name, how);
    log.info("{} rows of {} for {} ({} tokens)", range.size(), name, split_name(part), rows->size()->tokens);
    return std::make_unique<BatchSource>(
        rows, Order(is_training ? RowOrder::kPermuted : RowOrder::kRepeated, rows->num_rows(), name,
                    make_philox_key(setup.seed, "classification order")));
  });
}

void Classification::draw(Batch& rows) const {
  if (rows.has(field::kClassLabels)) return;
  // A number of a few sizes, or a class.
  const DrawnSegments drawn = draw_segments(rows, key_, model_.is_regression() ? kMadeUpNumbers : model_.num_labels);
  if (is_bert_) rows.set(BatchField::of_tokens(field::kTokenTypes, drawn.types));
  rows.set(BatchField::of_rows(field::kKeyLengths, drawn.lengths));
  rows.set(BatchField::of_rows(field::kClassLabels, drawn.labels.to(at::kFloat)));
}

at::Tensor Classification::weights_of(const Batch& part) const {
  const at::Tensor position = is_bert_ ? at::zeros({1}, at::kLong) : part.at(field::kKeyLengths) - 1;
  const at::Tensor is_here = part.row_index(field::kTokens).unsqueeze(0).eq(position.unsqueeze(1)).any(1);
  return class_weights(part.at(field::kClassLabels)).logical_and(is_here);
}

std::vector<double> Classification::count_weights(const Batch& part) const {
  return {weights_of(part).sum().item<double>()};
}

ModelInput Classification::make_input(const Batch& part, at::Device device, std::span<const Unit> units) const {
  ModelInput input = TextTask::make_input(part, device, units);
  if (model_.token_types() > 0 && part.has(field::kTokenTypes) && count_units(units, UnitLetter::kEmbedding) > 0) {
    input.more.set(input::kTokenTypes.name, sent_to(part.at(field::kTokenTypes), device));
  }
  if (count_units(units, UnitLetter::kHead) > 0) {
    input.more.set(input::kClassLabels.name, sent_to(part.at(field::kClassLabels), device));
  }
  // Without a training step's factor.
  input.terms = {{.name = loss_names()[0], .per_weight = {}}};
  return input;
}

std::vector<std::string> Classification::measured_names() const {
  if (model_.is_regression()) return {};
  return {kClassAccuracy};
}

std::vector<std::string> Classification::evaluated_names() const { return class_sum_names(model_.num_labels); }

at::Tensor Classification::evaluate(const Batch& part, const ModelOutput& output) const {
  const at::Device device = output.logits.device();
  return class_sums(output.logits.flatten(1), part.at(field::kClassLabels).to(device), weights_of(part).to(device));
}

std::vector<LossSum> Classification::concluded(std::vector<LossSum> sums) const {
  return class_measures(sums, model_.num_labels);
}

std::string Classification::prediction(std::span<const double> logits) const {
  if (model_.is_regression()) return dump_json(OrderedJson::object({{"value", logits[0]}}));
  const int64_t label = std::ranges::max_element(logits) - logits.begin();
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - logits[static_cast<size_t>(label)]);
  OrderedJson line = OrderedJson::object({{"label", label}});
  if (!model_.label_names.empty()) line["label"] = model_.label_names[static_cast<size_t>(label)];
  line["probability"] = 1 / sum;
  line["logits"] = std::vector<double>(logits.begin(), logits.end());
  return dump_json(line);
}

}  // namespace megalith
