// On-disk state of an unfinished `prepare`, for resuming: the folder {output_prefix}.prepare with parts of the outputs
// and state.json, which tells how much of them is valid.
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
  int64_t input_bytes = 0;  // raw input bytes up to the position
  PrepareReport report;
};

OrderedJson to_json(const PrepareState& state);
// UserError for impossible values.
PrepareState prepare_state_of(const Json& json, const std::string& where);

// The state that store_work_state() left for this job. Nothing, and a note, for another job's; a warning for a damaged
// one.
std::optional<Json> load_work_state(const std::filesystem::path& file, const std::string& job, Logger& log);
void store_work_state(const std::filesystem::path& file, const std::string& job, const OrderedJson& state);

// Token files that grow in a folder of their own, with a state from which the same job resumes.
class ResumableOutputs {
 public:
  struct Output {
    std::string prefix;
    TokenType type = TokenType::kInt32;
  };
  // job  all that the output bytes depend on, as JSON
  // Creates the folder, or opens an existing one. UserError when another process uses it, or it holds foreign files.
  ResumableOutputs(const std::string& output_prefix, std::vector<Output> outputs, std::string job);
  // Removes the folder unless a state was stored or found.
  ~ResumableOutputs();
  ResumableOutputs(const ResumableOutputs&) = delete;
  ResumableOutputs& operator=(const ResumableOutputs&) = delete;

  // Resumes an unfinished run of this job once `read` accepts its state: true. Starts anew without a state, or if
  // `read` throws or the parts are shorter.
  bool take_up(const std::function<void(const Json& state, const std::string& where)>& read, Logger& log);
  std::vector<IndexedDatasetWriter>& writers() { return writers_; }
  // Syncs all parts, then stores the state.
  void store(OrderedJson state);
  // Call when the outputs are finished, or nothing is left to resume.
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

// True if the folder holds a resumable state of this job.
bool holds_unfinished(const std::string& output_prefix, const std::string& job);

std::filesystem::path prepare_folder_of(const std::string& output_prefix);

// True if two jobs give the same bytes.
bool is_same_job(Json made, Json asked);

// The inputs as a job records them when read.
OrderedJson inputs_to_json(const std::vector<PrepareInput>& inputs);

// Everything the output bytes depend on, as JSON.
std::string job_of(const PrepareOptions& options, const std::vector<PrepareInput>& inputs, const Tokenizer& tokenizer);

}  // namespace megalith
