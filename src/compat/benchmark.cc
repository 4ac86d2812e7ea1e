// See benchmark.h.
#include "compat/benchmark.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/dialect.h"
#include "core/strings.h"

namespace megalith {

std::span<const BenchmarkModel> benchmark_models() {
  static const std::vector<BenchmarkModel> models = [] {
    std::vector<BenchmarkModel> all;
    for (const DialectRow& row :
         dialect_rows("benchmark_models", {"name", "preset", "batches", "tokens", "repo", "chats"})) {
      const std::vector<std::string> batches = split_words(row.cells[2]);
      all.push_back({row.cells[0], row.cells[1], std::stoi(batches.at(0)), std::stoi(batches.at(1)),
                     std::stoi(row.cells[3]), row.cells[4], row.cells[5]});
    }
    return all;
  }();
  return models;
}

std::span<const BenchmarkTag> benchmark_tags() {
  static const std::vector<BenchmarkTag> tags = [] {
    std::vector<BenchmarkTag> all;
    for (const DialectRow& row : dialect_rows("benchmark_tags", {"tag", "model", "backend", "script", "words"})) {
      const auto backend = row.choose<BenchmarkBackend>(row.cells[2], {{"torchtitan", BenchmarkBackend::kTorchtitan},
                                                                       {"megatron", BenchmarkBackend::kMegatron},
                                                                       {"primus", BenchmarkBackend::kPrimus}});
      const FrontEndRow* script = find_front_end(row.cells[3]);
      MEGALITH_CHECK(script != nullptr, "{}: there is no script {}", row.where, row.cells[3]);
      std::vector<std::string> words = split_words(row.cells[4]);
      const auto options = std::find_if(words.begin(), words.end(), [](auto& word) { return word.starts_with("--"); });
      all.push_back(
          {row.cells[0], row.cells[1], backend, script->id, {words.begin(), options}, {options, words.end()}});
    }
    return all;
  }();
  return tags;
}

const BenchmarkModel* find_benchmark_model(std::string_view name) {
  const auto models = benchmark_models();
  const auto found = std::find_if(models.begin(), models.end(),
                                  [&](const BenchmarkModel& one) { return lower_case(one.name) == lower_case(name); });
  return found == models.end() ? nullptr : &*found;
}

const BenchmarkTag* find_benchmark_tag(std::string_view tag) {
  const auto tags = benchmark_tags();
  const auto found =
      std::find_if(tags.begin(), tags.end(), [&](const BenchmarkTag& one) { return one.tag == lower_case(tag); });
  return found == tags.end() ? nullptr : &*found;
}

std::string benchmark_model_names() {
  std::string names;
  for (const BenchmarkModel& one : benchmark_models()) names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
  return names;
}

std::string nearest_benchmark(const std::string& name) {
  std::vector<std::string> names;
  for (const BenchmarkModel& one : benchmark_models()) names.emplace_back(one.name);
  for (const BenchmarkTag& one : benchmark_tags()) names.emplace_back(one.tag);
  const std::string nearest = nearest_word(name, names);
  return nearest.empty() ? "" : fmt::format(". Did you mean {}?", nearest);
}

}  // namespace megalith
