// Which task a run trains, and the options of the tasks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/option.h"

namespace megalith {

enum class TaskKind { kCausalLm, kMaskedLm, kBert, kT5, kIct };

struct TaskOptions {
  TaskKind task = TaskKind::kCausalLm;
  double mask_prob = 0.15;
  std::optional<int64_t> mask_token_id;       // default: the tokenizer's
  double short_seq_prob = 0.1;                // of kBert and kT5
  std::optional<int64_t> decoder_seq_length;  // of kT5, which needs it
  // Of kIct.
  std::optional<std::string> titles_data_path;
  double query_in_block_prob = 0.1;
  bool use_one_sent_docs = false;

  void visit(OptionVisitor& v);
};

}  // namespace megalith
