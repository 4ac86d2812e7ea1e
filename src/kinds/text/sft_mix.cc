#include "kinds/text/sft_mix.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

MixEnd end_of(const SftOptions& options) {
  switch (options.sft_mix) {
    case SftMix::kConcat:
      return MixEnd::kConcat;
    case SftMix::kInterleaveUnder:
      return MixEnd::kFirstExhausted;
    case SftMix::kInterleaveOver:
      return MixEnd::kAllExhausted;
    case SftMix::kAuto:
      break;
  }
  const bool has_shares = options.sft_mix_temperature || std::ranges::any_of(options.sets, [](const TrainingSet& set) {
                            return set.weight.has_value();
                          });
  return has_shares ? MixEnd::kFirstExhausted : MixEnd::kConcat;
}

}  // namespace

RowMix mix_of(const SftOptions& options, std::span<const std::shared_ptr<SftRows>> rows, uint64_t key, bool moves) {
  MEGALITH_CHECK(rows.size() == options.sets.size(), "{} sets, {} of them read", options.sets.size(), rows.size());
  std::vector<MixedSet> sets;
  const auto samples_of = [](const SftRows& set) {
    return static_cast<double>(std::max<int64_t>(set.size().value().documents, 1));
  };
  double most = 1;
  for (const auto& set : rows) most = std::max(most, samples_of(*set));
  for (size_t i = 0; i < rows.size(); ++i) {
    const double samples = samples_of(*rows[i]);
    double share = options.sets[i].weight.value_or(1);
    if (options.sft_mix_temperature) {
      share = std::max(std::pow(samples / most, 1 / *options.sft_mix_temperature), std::numeric_limits<double>::min());
    }
    sets.push_back({.name = options.sets[i].name,
                    .num_rows = rows[i]->num_rows(),
                    .share = share * static_cast<double>(rows[i]->num_rows()) / samples});
  }
  // Evaluations' passes are alike, in whatever order.
  return RowMix(std::move(sets), end_of(options), key, moves, options.sft_shuffle || !moves);
}

SftMixedRows::SftMixedRows(std::vector<std::shared_ptr<SftRows>> sets, const RowMix& mix) : sets_(std::move(sets)) {
  double documents = 0, tokens = 0;
  for (size_t i = 0; i < sets_.size(); ++i) {
    begins_.push_back(begins_.back() + sets_[i]->num_rows());
    const DataSize size = sets_[i]->size().value();
    const double passes = static_cast<double>(mix.num_rows_of(i)) / static_cast<double>(sets_[i]->num_rows());
    documents += passes * static_cast<double>(size.documents);
    tokens += passes * static_cast<double>(size.tokens);
  }
  size_ = {std::llround(documents), std::llround(tokens), static_cast<double>(mix.num_rows())};
}

std::string SftMixedRows::name() const {
  std::vector<std::string> names;
  for (const auto& set : sets_) names.push_back(set->name());
  return "mixture of " + join(names, ", ");
}

SftMixedRows::Place SftMixedRows::place_of(int64_t number) const {
  const auto set = static_cast<size_t>(std::ranges::upper_bound(begins_, number) - begins_.begin() - 1);
  return {set, number - begins_[set]};
}

double SftMixedRows::work(int64_t number) const {
  const auto [set, row] = place_of(number);
  return sets_.at(set)->work(row);
}

Batch SftMixedRows::read(std::span<const int64_t> rows) const {
  std::vector<Batch> parts;
  std::vector<int64_t> ids;
  for (const int64_t number : rows) {
    const auto [set, row] = place_of(number);
    parts.push_back(sets_.at(set)->read({&row, 1}));
    ids.push_back(static_cast<int64_t>(set));
  }
  Batch batch = parts.at(0);
  for (const BatchField& field : parts[0].fields()) {
    std::vector<at::Tensor> tensors;
    for (const Batch& part : parts) tensors.push_back(part.at(field.name));
    if (parts.size() > 1) batch.set(field.name, at::cat(tensors));
  }
  batch.set(BatchField::of_rows(field::kSetIds, at::tensor(ids, at::kLong)));
  return batch;
}

std::vector<std::string> describe(const RowMix& mix) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < mix.sets().size(); ++i) {
    const MixedSet& set = mix.sets()[i];
    lines.push_back(fmt::format("set {}: {} sequences a pass of {} ({:.3g} passes), {:.3g} % of all", set.name,
                                mix.num_rows_of(i), set.num_rows,
                                static_cast<double>(mix.num_rows_of(i)) / static_cast<double>(set.num_rows),
                                100 * static_cast<double>(mix.num_rows_of(i)) / static_cast<double>(mix.num_rows())));
  }
  return lines;
}

}  // namespace megalith
