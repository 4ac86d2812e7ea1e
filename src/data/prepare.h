// `megalith prepare`: JSON lines or plain text to .bin and .idx files. Flags, output names and token order are those of
// Megatron's tools/preprocess_data.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/log.h"
#include "hub/options.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

struct PrepareOptions {
  std::vector<std::string> input;
  std::string output_prefix;
  std::vector<std::string> json_keys = {"text"};
  bool append_eod = false;
  bool add_special_tokens = false;
  bool plain_text = false;
  bool split_sentences = false;
  bool keep_newlines = false;
  std::optional<int64_t> workers;
  int64_t log_interval = 1000;
  bool overwrite = false;
  TokenizerOptions tokenizer;
  HubOptions hub;  // for hub names of inputs and the tokenizer

  // Not options; tests shrink them.
  int64_t max_line_memory = int64_t{3} << 30;  // in bytes; a line that takes more is broken
  double store_every_s = 5;                    // between states for resuming

  void visit(OptionVisitor& v);
};

struct InputProblem {
  std::string file;
  int64_t line = 0;  // from 1
  std::string reason;
};

struct PrepareReport {
  struct Output {
    std::string prefix;
    int64_t documents = 0, tokens = 0, sequences = 0, bytes = 0;
  };
  std::vector<Output> outputs;
  int64_t documents = 0;  // read, broken ones not counted
  int64_t input_bytes = 0;
  int64_t num_empty_lines = 0, num_empty_documents = 0, num_broken_lines = 0;
  // At most a hundred of each kind.
  std::vector<InputProblem> empty_lines, empty_documents, broken_lines;
  double elapsed_s = 0;    // of all runs that made the outputs
  int64_t resumed_at = 0;  // documents done by earlier runs
  // An earlier run finished this job: lists its outputs, reads nothing.
  bool was_finished = false;
};

// Reads the inputs in order and writes {output_prefix}_{key}_document.bin and .idx (_sentence with split_sentences) for
// each key (plain text: key "text", one document a file). Document order does not depend on the number of workers, nor
// memory on input size. Outputs appear when all inputs are read; until then {output_prefix}.prepare holds the progress,
// and the same call resumes to the same bytes. Keeps (and reports) outputs of a finished run of the same job; replaces
// others only with overwrite. UserError for outputs that would be replaced, missing inputs, unknown formats, or no
// readable document.
PrepareReport prepare_data(const PrepareOptions& options, const Tokenizer& tokenizer, Logger& log);

// As text for a person, ending in a line break.
std::string describe(const PrepareReport& report);

}  // namespace megalith
