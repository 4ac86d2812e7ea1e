// What a run of `prepare` leaves on disk while it works, so that the next one goes on where it stopped: the folder
// {output_prefix}.prepare with the parts of the outputs and state.json, which says how much of them holds.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/log.h"
#include "data/indexed_writer.h"
#include "data/prepare.h"
#include "data/prepare_input.h"

namespace megalith {

struct PrepareState {
  InputPosition position;
  int64_t input_bytes = 0;  // of the inputs as they lie, up to the position
  PrepareReport report;
};

OrderedJson to_json(const PrepareState& state);
// UserError for what cannot be.
PrepareState prepare_state_of(const Json& json, const std::string& where);

// The state that store_work_state() left for this very job in a file. Nothing, and a note, for another job's; a warning
// for a damaged one.
std::optional<Json> load_work_state(const std::filesystem::path& file, const std::string& job, Logger& log);
void store_work_state(const std::filesystem::path& file, const std::string& job, const OrderedJson& state);

// Token files that grow in a folder of their own until all is done, and a state beside them from which the same job
// goes on.
class ResumableOutputs {
 public:
  struct Output {
    std::string prefix;
    TokenType type = TokenType::kInt32;
  };
  // job  all that the bytes of the outputs depend on, as JSON
  // Creates the folder, or takes up the one that is there. UserError when another process works in it, and when it
  // holds files of others.
  ResumableOutputs(const std::string& output_prefix, std::vector<Output> outputs, std::string job);
  // Removes the folder unless a state was stored or found.
  ~ResumableOutputs();
  ResumableOutputs(const ResumableOutputs&) = delete;
  ResumableOutputs& operator=(const ResumableOutputs&) = delete;

  // Goes on from the state of an unfinished run of this job, after `read` has taken it: true. Begins anew where there
  // is none, or where `read` throws or the parts hold less.
  bool take_up(const std::function<void(const Json& state, const std::string& where)>& read, Logger& log);
  std::vector<IndexedDatasetWriter>& writers() { return writers_; }
  // All that was written so far, and the state.
  void store(OrderedJson state);
  // The outputs are finished, or there is nothing to go on from.
  void remove();

 private:
  void begin(const std::vector<IndexedDatasetWriter::Position>& positions);
  void clear();

  std::filesystem::path folder_;
  std::vector<Output> outputs_;
  std::string job_;
  int lock_ = -1;
  bool has_state_ = false;
  std::vector<IndexedDatasetWriter> writers_;
};

// Whether the folder holds a state of this very job, with which a run goes on.
bool holds_unfinished(const std::string& output_prefix, const std::string& job);

std::filesystem::path prepare_folder_of(const std::string& output_prefix);

// Whether two jobs give the same bytes.
bool is_same_job(Json made, Json asked);

// The inputs as a job has them: what they were when they were read.
OrderedJson inputs_to_json(const std::vector<PrepareInput>& inputs);

// Everything that the bytes of the outputs depend on, as JSON.
std::string job_of(const PrepareOptions& options, const std::vector<PrepareInput>& inputs, const Tokenizer& tokenizer);

}  // namespace megalith
