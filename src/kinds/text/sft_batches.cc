#include "kinds/text/sft_batches.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/philox.h"
#include "data/balance.h"
#include "data/index_cache.h"
#include "kinds/text/sft_mix.h"
#include "nn/preference_loss.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// Texts fill sequences to the last token.
bool goes_on_in_next(const SftSet& set, const DataOptions& options) {
  return set.report().form == SftForm::kText && options.sft.enable_packed_sequences;
}

// Lengths used in training: cut, or refused as too long.
std::function<int64_t(int64_t)> lengths_in(const SftSet& set, const DataOptions& options, int64_t s) {
  if (goes_on_in_next(set, options)) return [&set](int64_t sample) { return set.length(sample); };
  if (!options.sft.truncate && set.longest() > s) {
    int64_t num_longer = 0;
    for (int64_t i = 0; i < set.num_samples(); ++i) num_longer += set.length(i) > s ? 1 : 0;
    const std::string place = set.is_rated() ? "with the answer before it" : set.report().longest_place;
    throw UserError(fmt::format("{} of {} samples are longer than seq_length {}: the longest has {} tokens ({})",
                                num_longer, set.num_samples(), s, set.longest(), place),
                    "raise --seq_length, cut them with --truncate, or leave them out");
  }
  return [&set, s](int64_t sample) { return std::min(set.length(sample), s); };
}

void note_cut_samples(const SftSet& set, const ElementRange& range, const DataOptions& options, int64_t s,
                      Logger& log) {
  if (!options.sft.truncate || goes_on_in_next(set, options) || set.longest() <= s) return;
  int64_t num_cut = 0, tokens = 0;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t surplus = std::max<int64_t>(set.length(i) - s, 0);
    num_cut += surplus > 0 ? 1 : 0;
    tokens += surplus;
  }
  if (num_cut == 0) return;
  log.note("truncate cuts {} of {} samples to seq_length {}: {} tokens are not learned", num_cut, range.size(), s,
           tokens);
}

UserError empty_training_error(const SftSet& set) {
  return UserError(fmt::format("the train split of {} is empty", set.prefix()), "give it a larger weight in --split");
}

// Refuses rows that are not the loss's.
void check_form(const SftSet& set, const SftOptions& options) {
  const SftForm form = set.report().form;
  const std::string_view found = sft_form_name(form);
  if (options.loss == SftLoss::kNextToken && form == SftForm::kPairs) {
    throw UserError(fmt::format("{} holds {}, and loss is next_token", set.prefix(), found),
                    "add --loss dpo; or give rows with one answer each");
  }
  if (options.loss == SftLoss::kNextToken && form == SftForm::kRated) {
    throw UserError(
        fmt::format("{} holds {}, and loss is next_token, which would learn the bad ones too", set.prefix(), found),
        "add --loss kto; give a file of the good answers; or, where label rates nothing, add --sft_ignore_keys label");
  }
  if (options.loss == SftLoss::kDpo && form != SftForm::kPairs) {
    throw UserError(fmt::format("loss is dpo, and {} holds {}", set.prefix(), found),
                    "its rows have prompt, chosen and rejected; or leave --loss out");
  }
  if (options.loss == SftLoss::kKto && form != SftForm::kRated) {
    throw UserError(fmt::format("loss is kto, and {} holds {}", set.prefix(), found),
                    "its rows have prompt, completion and label; or leave --loss out");
  }
}

std::shared_ptr<const SftSet> open_set(const std::string& prefix, const SftOptions& options) {
  auto set = std::make_shared<const SftSet>(prefix);
  check_form(*set, options);
  return set;
}

// One, or options.sets.
std::vector<std::shared_ptr<const SftSet>> open_training_sets(const SftOptions& options) {
  const std::vector<std::string>& prefixes = options.sft_data_path;
  MEGALITH_CHECK(prefixes.size() == std::max<size_t>(options.sets.size(), 1), "{} prefixes of {} sets of instructions",
                 prefixes.size(), options.sets.size());
  std::vector<std::shared_ptr<const SftSet>> sets;
  for (const std::string& prefix : prefixes) sets.push_back(open_set(prefix, options));
  return sets;
}

// A set's samples of this split.
ElementRange range_of(const SftSet& set, Split split, const DataOptions& options) {
  if (!options.sft.sft_valid_data_path.empty()) return {0, set.num_samples()};
  const auto ranges = split_ranges(parse_split(options.split.value_or(kDefaultSplit)), set.num_samples());
  const ElementRange range = ranges[static_cast<size_t>(split)].value_or(ElementRange{});
  if (range.size() == 0 && split == Split::kTrain) throw empty_training_error(set);
  return range;
}

SftPacks pack_range(const SftSet& set, const ElementRange& range, const DataOptions& options, int64_t s) {
  return {range.begin, range.end, lengths_in(set, options, s), s, goes_on_in_next(set, options), options.sft};
}

// The same, cached on disk.
SftPacks load_or_pack_range(const SftSet& set, const ElementRange& range, const DataOptions& options, int64_t s,
                            Logger& log) {
  const SftOptions& sft = options.sft;
  OrderedJson description = {{"class", "SFTDataset"},
                                   {"lengths", set.lengths_identity()},
                                   {"samples", {range.begin, range.end}},
                                   {"sequences_per_sample", set.sequences_per_sample()},
                                   {"seq_length", s},
                                   {"packed", sft.enable_packed_sequences},
                                   {"splits", goes_on_in_next(set, options)},
                                   {"first_fit_decreasing", sft.sft_packing == SftPacking::kFirstFitDecreasing},
                                   {"max_samples_per_sequence", sft.max_samples_per_sequence.value_or(0)}};
  if (sft.balance_sequences) description["balanced"] = true;  // otherwise as older caches
  const auto length = lengths_in(set, options, s);  // refuses samples that are too long, even if the packs are cached
  const fs::path folder = options.data_cache_path ? fs::path(*options.data_cache_path)
                                                  : fs::path(set.prefix()) / "cache" / "SFTDataset_indices";
  const IndexCacheKey key{"SFTDataset", "", description.dump(4), SftPacks::array_names(), "",
                          SftPacks::have_fitting_shapes};
  const auto build = [&] {
    return SftPacks(range.begin, range.end, length, s, goes_on_in_next(set, options), sft).arrays();
  };
  return SftPacks(load_or_build_arrays(folder, key, build, log));
}

}  // namespace

std::vector<SftPiece> sequences_of_pack(const SftSet& set, std::span<const SftPiece> pack) {
  std::vector<SftPiece> pieces;
  for (const SftPiece& piece : pack) {
    if (!set.has_pairs()) {
      pieces.push_back(piece);
      continue;
    }
    const int64_t first = 2 * piece.sample;
    const int64_t chosen = set.sequence_length(first), rejected = set.sequence_length(first + 1);
    // Half of the room each, plus what the other one does not need.
    const int64_t kept = std::min(chosen, std::max(piece.length / 2, piece.length - rejected));
    pieces.push_back({first, 0, kept});
    pieces.push_back({first + 1, 0, std::min(rejected, piece.length - kept)});
  }
  return pieces;
}

void fill_sft_row(const SftSet& set, std::span<const SftPiece> pack, const Batch& batch, int64_t row) {
  const auto row_of = [&](std::string_view name) { return batch.at(name)[row]; };
  const int64_t s = batch.length(field::kTokens);
  auto* tokens = row_of(field::kTokens).mutable_data_ptr<int64_t>();
  auto* labels = row_of(field::kLabels).mutable_data_ptr<int64_t>();
  auto* weights = row_of(field::kLossWeights).mutable_data_ptr<float>();
  auto* positions = row_of(field::kPositionIds).mutable_data_ptr<int64_t>();
  const bool is_apart = batch.has(field::kDocumentIds);
  auto* documents = is_apart ? row_of(field::kDocumentIds).mutable_data_ptr<int32_t>() : nullptr;
  int64_t at = 0;
  int32_t document = 0;
  std::vector<int64_t> ids;
  std::vector<uint8_t> counts;
  for (const SftPiece& piece : pack) {
    const int64_t known = std::min(piece.length + 1, set.sequence_length(piece.sample) - piece.offset);
    ids.resize(static_cast<size_t>(known));
    counts.resize(ids.size());
    set.read(piece.sample, piece.offset, known, ids.data(), counts.data());
    for (int64_t i = 0; i < piece.length; ++i, ++at) {
      const bool has_next = i + 1 < known;
      tokens[at] = ids[static_cast<size_t>(i)];
      labels[at] = has_next ? ids[static_cast<size_t>(i + 1)] : 0;
      weights[at] = has_next && counts[static_cast<size_t>(i + 1)] != 0 ? 1.0f : 0.0f;
      positions[at] = is_apart ? i : at;
      if (documents != nullptr) documents[at] = document;
    }
    ++document;
  }
  MEGALITH_CHECK(at <= s, "{} tokens in a sequence of {}", at, s);
  for (int64_t i = 0; at < s; ++i, ++at) {
    tokens[at] = labels[at] = 0;
    weights[at] = 0;
    positions[at] = is_apart ? i : at;
    if (documents != nullptr) documents[at] = document;
  }
}

SftRows::SftRows(std::shared_ptr<const SftSet> set, SftPacks packs, const SftOptions& options, const DataSetup& setup)
    : set_(std::move(set)),
      packs_(std::move(packs)),
      keeps_apart_(set_->has_pairs() || (options.enable_packed_sequences && options.use_packed_attention)),
      sequence_length_(setup.sequence_length),
      vocab_size_(setup.vocab_size) {}

std::vector<SftPiece> SftRows::sequences(int64_t row) const {
  const std::vector<SftPiece> pack = packs_.pack(row);
  int64_t tokens = 0;
  for (const SftPiece& piece : pack) {
    const bool is_there = piece.sample >= 0 && piece.sample < set_->num_samples() && piece.offset >= 0 &&
                          piece.length > 0 && piece.length <= sequence_length_ - tokens &&
                          piece.offset <= set_->length(piece.sample) - piece.length;
    if (!is_there) throw damaged_packs_error(row);
    tokens += piece.length;
  }
  return sequences_of_pack(*set_, pack);
}

double SftRows::work(int64_t row) const {
  std::vector<int64_t> lengths;
  for (const SftPiece& sequence : sequences(row)) lengths.push_back(sequence.length);
  return keeps_apart_ ? pairs_of_context_ranks(lengths, sequence_length_, 1)[0] : 1;
}

Batch SftRows::read(std::span<const int64_t> numbers) const {
  const int64_t s = sequence_length_, b = std::ssize(numbers);
  Batch batch = make_batch(b, {.sequence_length = s, .reset_attention_mask = keeps_apart_});
  std::vector<std::vector<SftPiece>> rows;
  for (int64_t row = 0; row < b; ++row) {
    rows.push_back(sequences(numbers[static_cast<size_t>(row)]));
    fill_sft_row(*set_, rows.back(), batch, row);
    const int64_t* tokens = batch.at(field::kTokens).const_data_ptr<int64_t>() + row * s;
    for (int64_t i = 0; i < s; ++i) {
      if (tokens[i] >= 0 && tokens[i] < vocab_size_) continue;
      throw UserError(
          fmt::format("{} holds the token id {}, but the vocabulary has {} ids", name(), tokens[i], vocab_size_),
          "the tokenizer is not the model's");
    }
  }
  if (set_->has_pairs()) add_pairs(batch, rows);
  return batch;
}

void SftRows::add_pairs(Batch& batch, const std::vector<std::vector<SftPiece>>& rows) const {
  const int64_t s = sequence_length_, b = std::ssize(rows);
  const at::Tensor pairs = at::empty({b}, at::kLong);
  for (int64_t row = 0; row < b; ++row) {
    pairs.mutable_data_ptr<int64_t>()[row] = std::ssize(rows[static_cast<size_t>(row)]) / 2;
  }
  batch.set(BatchField::of_rows(field::kNumPairs, pairs));
  if (set_->is_rated()) {
    const at::Tensor signs = at::zeros({b, most_pairs(s)}, at::kFloat);
    for (int64_t row = 0; row < b; ++row) {
      float* at = signs.mutable_data_ptr<float>() + row * most_pairs(s);
      const std::vector<SftPiece>& sequences = rows[static_cast<size_t>(row)];
      for (size_t i = 0; i < sequences.size(); i += 2) *at++ = set_->is_bad(sequences[i].sample / 2) ? -1.0f : 1.0f;
    }
    batch.set(BatchField::of_rows(kRatingSigns, signs));
  }
  if (!reference_) return;
  const at::Tensor log_probs = at::zeros({b, s}, at::kFloat);
  for (int64_t row = 0; row < b; ++row) {
    float* at = log_probs.mutable_data_ptr<float>() + row * s;
    for (const SftPiece& piece : rows[static_cast<size_t>(row)]) {
      // Labels are the tokens from the second on.
      const int64_t known = std::min(piece.length, set_->sequence_length(piece.sample) - piece.offset - 1);
      reference_->read(piece.sample, piece.offset + 1, known, at);
      at += piece.length;
    }
  }
  batch.set(BatchField::of_tokens(field::kReferenceLogProbs, log_probs));
}

std::shared_ptr<SftRows> make_whole_sft_rows(std::shared_ptr<const SftSet> set, const DataOptions& options,
                                             const DataSetup& setup) {
  SftPacks packs = pack_range(*set, {0, set->num_samples()}, options, setup.sequence_length);
  return std::make_shared<SftRows>(std::move(set), std::move(packs), options.sft, setup);
}

DataSets make_sft_sets(const DataOptions& options, const DataSetup& setup, Logger& log) {
  const SftOptions& sft = options.sft;
  const auto trained = open_training_sets(sft);
  const bool has_sets = !validation_sets(options).empty(), has_valid = !sft.sft_valid_data_path.empty();
  const std::string split = options.split.value_or(kDefaultSplit);
  if (!has_valid && !options.split) {
    log.note("split is not given: {} of sft_data_path go to training, validation and test", split);
  }
  const auto balances = [&](Split part) { return sft.balance_sequences && part == Split::kTrain; };
  const auto rows_of = [&](Split part, const std::shared_ptr<const SftSet>& set, const ElementRange& range) {
    note_cut_samples(*set, range, options, setup.sequence_length, log);
    DataOptions of_part = options;
    of_part.sft.balance_sequences = balances(part);
    return std::make_shared<SftRows>(set, load_or_pack_range(*set, range, of_part, setup.sequence_length, log), sft,
                                     setup);
  };
  const auto source_of = [&](Split part, const std::shared_ptr<SftRows>& rows) {
    const bool is_training = part == Split::kTrain;
    if (is_training) {
      log.info("{} sequences a pass of {} samples ({} tokens)", rows->num_rows(), rows->size()->documents,
               rows->size()->tokens);
    }
    auto source = std::make_unique<BatchSource>(
        rows, Order(is_training && sft.sft_shuffle ? RowOrder::kPermuted : RowOrder::kRepeated, rows->num_rows(),
                    rows->name(), make_philox_key(setup.seed, "sft order")));
    if (balances(part)) source->balance();
    return source;
  };
  const auto mixed_source = [&](Split part) -> std::unique_ptr<BatchSource> {
    SftOptions present = sft;
    present.sets.clear();
    std::vector<std::shared_ptr<SftRows>> rows;
    for (size_t i = 0; i < trained.size(); ++i) {
      const ElementRange range = range_of(*trained[i], part, options);
      if (range.size() == 0) continue;
      rows.push_back(rows_of(part, trained[i], range));
      present.sets.push_back(sft.sets[i]);
    }
    if (rows.empty()) return nullptr;
    // Evaluations read every set as it is.
    if (part != Split::kTrain) present.sft_mix = SftMix::kConcat;
    RowMix mix = mix_of(present, rows, make_philox_key(setup.seed, "sft order"), /*moves=*/part == Split::kTrain);
    const auto mixed = std::make_shared<SftMixedRows>(std::move(rows), mix);
    if (part == Split::kTrain) {
      for (const std::string& line : describe(mix)) log.info("{}", line);
    }
    auto source = std::make_unique<BatchSource>(mixed, Order(std::move(mix), mixed->name()));
    if (balances(part)) source->balance();
    return source;
  };
  DataSets sets = make_splits(setup, [&](Split part, std::optional<int64_t> /*num_samples*/) {
    std::unique_ptr<BatchSource> source;
    if (has_valid && part != Split::kTrain) {
      if (part == Split::kTest || has_sets) return source;
      const auto set = open_set(sft.sft_valid_data_path.at(0), sft);
      return source_of(part, rows_of(part, set, {0, set->num_samples()}));
    }
    if (!sft.sets.empty()) {
      source = mixed_source(part);
    } else if (const ElementRange range = range_of(*trained[0], part, options); range.size() > 0) {
      source = source_of(part, rows_of(part, trained[0], range));
    }
    if (!source) {
      log.note("the instruction data are too few for a {} split of {}: there is none", split_name(part), split);
    }
    return source;
  });
  add_validation_sets(options, setup, sets, [&](const std::string& prefix, std::optional<int64_t> /*num_samples*/) {
    const auto set = open_set(prefix, sft);
    return source_of(Split::kValid, rows_of(Split::kValid, set, {0, set->num_samples()}));
  });
  return sets;
}

int64_t count_sft_sequences(const DataOptions& options, int64_t sequence_length) {
  Logger silent({.level = LogLevel::kSilent});  // make_sft_sets() logs the cache
  std::vector<std::shared_ptr<SftRows>> rows;
  for (const auto& set : open_training_sets(options.sft)) {
    const ElementRange range = range_of(*set, Split::kTrain, options);
    rows.push_back(std::make_shared<SftRows>(set, load_or_pack_range(*set, range, options, sequence_length, silent),
                                             options.sft, DataSetup{.sequence_length = sequence_length}));
  }
  return options.sft.sets.empty() ? rows[0]->num_rows() : mix_of(options.sft, rows, 0).num_rows();
}

}  // namespace megalith
