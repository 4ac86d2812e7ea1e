// Options of instruction tuning: rows read, their tokens and loss weights, packing into sequences. Primus's names where
// it has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"

namespace megalith {

enum class TrainingStage { kAuto, kPretrain, kSft };
enum class ConversationFormat {
  kAuto,
  kAlpaca,
  kChatTemplate,
  kMessages,
  kSquad,
  kAlpacaChat,
  kAlpacaChatMl,
  kAlpacaPhi,
};
enum class SftPacking { kGreedy, kFirstFitDecreasing };
enum class SftLoss { kNextToken, kDpo, kKto };
enum class DpoReference { kAhead, kOnTheFly };
enum class SftMix { kAuto, kConcat, kInterleaveUnder, kInterleaveOver };

// One of several training sets: drawn in its share, with a loss of its own.
struct TrainingSet {
  std::string name, path;
  std::optional<double> weight;
};

struct SftOptions {
  TrainingStage stage = TrainingStage::kAuto;
  std::vector<std::string> sft_data_path, sft_valid_data_path;
  std::vector<std::string> sft_set_names;
  SftMix sft_mix = SftMix::kAuto;
  std::optional<double> sft_mix_temperature;
  // No option: the number of files that each path of sft_valid_data_path became, once names and parts are resolved.
  std::vector<size_t> num_valid_files = {};
  // No option: training_sets(), and the number of files of each.
  std::vector<TrainingSet> sets = {};
  std::vector<size_t> num_set_files = {};
  std::optional<std::string> sft_dataset_split;
  std::optional<std::string> sft_column;
  ConversationFormat sft_conversation_format = ConversationFormat::kAuto;
  bool train_on_input = false;
  bool mask_history = false;
  std::vector<std::string> sft_ignore_keys, sft_rename_keys;
  bool sft_drop_system = false, sft_deduplicate = false;
  std::optional<int64_t> skip_bad_rows;
  std::optional<std::string> chat_template_kwargs;
  std::optional<bool> enable_thinking;
  bool truncate = false;
  bool enable_packed_sequences = false;
  bool use_packed_attention = true;
  SftPacking sft_packing = SftPacking::kGreedy;
  std::optional<int64_t> max_samples_per_sequence;
  bool balance_sequences = false;
  bool sft_shuffle = true;
  SftLoss loss = SftLoss::kNextToken;
  double dpo_beta = 0.1;
  DpoReference dpo_reference = DpoReference::kAhead;
  double kto_desirable_weight = 1, kto_undesirable_weight = 1;

  // The sets of sft_data_path, if weights, names or a way of mixing make them sets of their own; else empty. UserError
  // for names and weights that do not fit.
  std::vector<TrainingSet> training_sets() const;
  // sft_data_path without weights; empty if they are wrong.
  std::vector<std::string> training_paths() const;

  void visit(OptionVisitor& v);
  // Subsets for `inspect sft` and `prepare --sft`: rows read, their tokens and weights, sequences.
  void visit_paths(OptionVisitor& v);
  void visit_rows(OptionVisitor& v);
  void visit_sequences(OptionVisitor& v);
  bool has_paths() const { return !sft_data_path.empty() || !sft_valid_data_path.empty(); }
  // The loss compares sequences with a reference model's: two of a sample (SftSet::has_pairs()).
  bool has_pairs() const { return loss != SftLoss::kNextToken; }
};

}  // namespace megalith
