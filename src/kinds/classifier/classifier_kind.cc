#include "kinds/classifier/classifier_kind.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "core/collect_errors.h"
#include "data/split.h"
#include "hub/hub.h"
#include "hub/texts.h"
#include "kinds/classifier/class_rows.h"
#include "models/classifier_head.h"
#include "train/activation_report.h"
#include "train/inputs.h"

namespace megalith {
namespace {

constexpr int64_t kMostToyLabels = 5;

// The options that name rows, with their values.
template <typename Data>
auto path_lists(Data& data) {
  return std::array{std::pair{"data_path", &data.data_path}, std::pair{"train_data_path", &data.train_data_path},
                    std::pair{"valid_data_path", &data.valid_data_path},
                    std::pair{"test_data_path", &data.test_data_path}};
}

}  // namespace

void ClassifierKind::complete_shapes(ModelInput& input, const Resolved& run, int64_t /*encoder_s*/) const {
  add_shapes(input, run.config.model, kClassifierInputs);
}

void ClassifierKind::check_task(const Resolved& run, std::vector<UserError>& errors) const {
  if (run.config.task.task != TaskKind::kClassification) {
    errors.emplace_back(fmt::format("task {} with model_type classifier, which predicts no tokens",
                                    run.options->of(run.config.task.task).text()),
                        "leave task out: such a model is trained by task classification");
    return;
  }
  TokenKind::check_task(run, errors);
}

std::vector<UserError> ClassifierKind::check_data(Resolved& run) const {
  if (!run.config.data.has_paths()) return no_data(run);
  std::vector<UserError> errors;
  collect(errors, [&] {
    const DataOptions data = with_listed_paths(run.config.data);
    if (data.split) collect(errors, [&] { parse_split(*data.split); });
    for (const auto& [option, paths] : path_lists(data)) {
      for (const std::string& path : *paths) {
        if (auto refusal = refuse_url(option, path)) errors.push_back(std::move(*refusal));
      }
      if (!errors.empty()) continue;
      const bool are_here = std::ranges::all_of(*paths, [](const std::string& path) {
        return std::filesystem::exists(path) || !parse_hub_name(path, HubRepoType::kDataset);
      });
      if (paths->empty() || !are_here) continue;
      collect(errors, [&, paths = paths] { read_class_rows(*paths, run.config.model, [](const ClassRow&) {}); });
    }
  });
  return errors;
}

void ClassifierKind::fetch_inputs(Resolved& run, const EnvironmentMap& environment, Logger& log,
                                  std::vector<UserError>& errors) const {
  collect(errors, [&] { run.derived.data = with_listed_paths(run.derived.data); });
  for (const auto& [option, paths] : path_lists(run.derived.data)) {
    std::vector<std::string> files;
    for (const std::string& path : *paths) {
      collect(errors, [&, option = option] {
        for (std::string& file : resolve_hub_texts(option, path, environment, run.config.hub, log)) {
          files.push_back(std::move(file));
        }
      });
    }
    *paths = std::move(files);
  }
}

int64_t ClassifierKind::count_sequences(const Resolved& run) const {
  const DataOptions data = with_listed_paths(run.derived.data);
  const bool is_whole = data.data_path.empty();
  int64_t count = 0;
  read_class_rows(is_whole ? data.train_data_path : data.data_path, run.config.model,
                  [&](const ClassRow&) { ++count; });
  if (is_whole) return count;
  const auto ranges = split_ranges(parse_split(data.split.value_or(kDefaultSplit)), count);
  return ranges[static_cast<size_t>(Split::kTrain)].value_or(ElementRange{}).size();
}

std::vector<std::pair<std::string, std::string>> ClassifierKind::report_rows(const Resolved& run) const {
  const ModelConfig& model = run.config.model;
  const std::string layers = model.is_of_encoders() ? "a BERT's layers, its pooler" : "a decoder's layers, last token";
  if (model.is_regression()) return {{"labels", fmt::format("numbers, by squared error; {}", layers)}};
  const std::string names =
      model.label_names.empty() ? "" : fmt::format(": {}", fmt::join(model.label_names, ", "));
  return {{"labels", fmt::format("{} classes{}; {}", model.num_labels, names, layers)}};
}

void ClassifierKind::shrink_model(const ParallelOptions& ranks, const ModelConfig& asked,
                                  const std::vector<int64_t>& sources, ModelConfig& toy) const {
  TokenKind::shrink_model(ranks, asked, sources, toy);
  toy.num_labels = std::min(asked.num_labels, kMostToyLabels);
}

}  // namespace megalith
