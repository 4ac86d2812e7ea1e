// `megalith prepare`: JSON lines or plain text to the .bin and .idx files that training reads. Flags, output names and
// token order are those of Megatron's tools/preprocess_data.py.
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
  HubOptions hub;  // for names among the inputs, and of a tokenizer

  // Not options: what tests make smaller.
  int64_t max_line_memory = int64_t{3} << 30;  // in bytes; lines that would take more are broken ones
  double store_every_s = 5;                    // between states that a killed run goes on from

  void visit(OptionVisitor& v);
};

// A place in an input that could not be used, and why.
struct InputProblem {
  std::string file;
  int64_t line = 0;  // from 1
  std::string reason;
};

struct PrepareReport {
  struct Output {
    std::string prefix;  // of the .bin and .idx
    int64_t documents = 0, tokens = 0, sequences = 0, bytes = 0;
  };
  std::vector<Output> outputs;  // one a key
  int64_t documents = 0;        // read, broken ones not counted
  int64_t input_bytes = 0;
  int64_t num_empty_lines = 0, num_empty_documents = 0, num_broken_lines = 0;
  // The first hundred of each kind.
  std::vector<InputProblem> empty_lines, empty_documents, broken_lines;
  double elapsed_s = 0;    // of all runs that made the outputs
  int64_t resumed_at = 0;  // documents that were done before this run
  // The same job was finished before: its outputs are listed, and nothing was read.
  bool was_finished = false;
};

// Reads every input in order and writes {output_prefix}_{key}_document.bin and .idx (_sentence with split_sentences)
// for each key (plain text: key "text", one document a file). Documents keep their order whatever the number of
// workers; memory does not grow with the input. The outputs appear only when all inputs were read; until then the
// folder {output_prefix}.prepare holds what is done, and the same call goes on from there and gives the same bytes.
// Outputs that a finished run of the same job left are kept, and the report says so; others are replaced only with
// overwrite. UserError for outputs that would be replaced, for missing inputs, unknown formats, and when no document
// could be read.
PrepareReport prepare_data(const PrepareOptions& options, const Tokenizer& tokenizer, Logger& log);

// The report as text for a person, ending in a line break.
std::string describe(const PrepareReport& report);

}  // namespace megalith
