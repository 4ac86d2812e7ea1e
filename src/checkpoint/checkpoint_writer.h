// Writes a checkpoint: each rank its share to its own files, which appear at once.
//
// write() needs no other rank, so it can overlap training:
//   construction    collective: assigns the writing, checks free space and that all ranks see the folder
//   copy_to_host()  optional: lets training go on during write()
//   write()         writes this rank's files, block by block
//   finish()        collective: checks completeness, writes checkpoint.json, renames the folder, moves the pointer,
//                   deletes old checkpoints
// If a rank fails, all throw and no checkpoint appears.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint/kept_tokenizer.h"
#include "checkpoint/manifest.h"
#include "comm/groups.h"
#include "core/file.h"
#include "core/log.h"

namespace megalith {

struct SaveSettings {
  bool with_optimizer = true;  // false: only the key "model"
  Retention retention;
  int64_t block_bytes = int64_t{64} << 20;  // for assembling
  StepHook before_step;
  std::vector<KeptFile> files = {};  // of rank 0
};

class CheckpointWriter {
 public:
  // Writes to root/iter_%07d. `state`'s tensors must not change until copy_to_host() or write() returns.
  CheckpointWriter(std::filesystem::path root, CheckpointState state, const Groups& groups, Logger& log,
                   SaveSettings settings = {});
  ~CheckpointWriter();

  // buffers  reused where they fit (touched memory takes no page faults), until write() has returned
  void copy_to_host(std::vector<at::Tensor>& buffers);
  // finish() throws its errors. May run on its own thread.
  void write() noexcept;
  // Returns the folder, durable.
  std::filesystem::path finish();

  int64_t num_bytes() const { return num_bytes_; }         // by this rank
  bool has_failed() const { return failure_ != nullptr; }  // after write()

 private:
  struct RankFile {
    std::string key, name;
    std::vector<Chunk> chunks;
  };
  void plan();
  void open();
  void write_file(const RankFile& file, Progress& progress);
  void commit(const std::vector<std::string>& chunk_lists);
  void step(std::string_view what) const;

  std::filesystem::path root_;
  CheckpointState state_;
  const Groups& groups_;
  Logger& log_;
  SaveSettings settings_;
  std::vector<RankFile> files_;
  int64_t num_bytes_ = 0;
  std::filesystem::path folder_;                // being written
  std::unique_ptr<AtomicDirectory> directory_;  // rank 0
  std::vector<StoredChunk> chunks_;             // by this rank
  std::exception_ptr failure_;
};

// All three steps.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, const CheckpointState& state,
                                      const Groups& groups, Logger& log, const SaveSettings& settings = {});

}  // namespace megalith
