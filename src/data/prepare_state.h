// What a run of `prepare` leaves on disk while it works, so that the next one goes on where it stopped: the folder
// {output_prefix}.prepare with the parts of the outputs and state.json, which says how much of them holds.
#pragma once

#include <filesystem>
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
  std::vector<IndexedDatasetWriter::Position> writers;  // one a key
};

class PrepareFolder {
 public:
  // Creates the folder, or takes up the one that is there. UserError when another process works in it.
  explicit PrepareFolder(const std::string& output_prefix);
  // Removes the folder unless a state was stored or found.
  ~PrepareFolder();
  PrepareFolder(const PrepareFolder&) = delete;
  PrepareFolder& operator=(const PrepareFolder&) = delete;

  // The state of an unfinished run of this very job (see job_of); otherwise a note, an emptied folder and nothing.
  std::optional<PrepareState> load(const std::string& job, size_t num_writers, Logger& log);
  void store(const std::string& job, const PrepareState& state);
  // Empties the folder: the run begins anew.
  void clear();
  // The work is done.
  void remove();

  std::string part(size_t writer) const;  // what the names of a writer's parts begin with

 private:
  std::filesystem::path folder_;
  int lock_ = -1;
  bool has_state_ = false;
};

// Whether the folder holds a state of this very job, with which a run goes on.
bool holds_unfinished(const std::string& output_prefix, const std::string& job);

std::filesystem::path prepare_folder_of(const std::string& output_prefix);

// Whether two jobs give the same bytes.
bool is_same_job(Json made, Json asked);

// Everything that the bytes of the outputs depend on, as JSON.
std::string job_of(const PrepareOptions& options, const std::vector<PrepareInput>& inputs, const Tokenizer& tokenizer);

}  // namespace megalith
