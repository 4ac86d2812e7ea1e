// run-ID.wandb, an offline run of Weights & Biases: protocol-buffer messages (Record) in LevelDB's log frames, which
// 'wandb sync' replays to the server.
//
//   file     ":W&B", 0xBEE1 (2 bytes), version 0 (1 byte), then blocks of 32 KiB; the first includes these 7 bytes
//   frame    CRC-32 of kind and data (4 bytes), length (2 bytes), kind (1 byte), data; never crosses a block's end
//   kind     1 a whole record, 2 its first part, 3 a middle part, 4 its last; fewer than 7 bytes at a block's end
//            are zero
//   Record   { int64 num = 1; HistoryRecord history = 2; SummaryRecord summary = 3; FilesRecord files = 6;
//              RunRecord run = 17; RunExitRecord exit = 18; HeaderRecord header = 21;
//              EnvironmentRecord environment = 26; }
//
// Little endian; the checksum is zlib's, without LevelDB's mask. Source: wandb 0.16's sdk/internal/datastore.py,
// wandb/proto/wandb_internal.proto; compared with the files of wandb 0.31.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

std::string wandb_file_header();

// To be written at byte `offset`.
std::string wandb_frames(std::string_view record, int64_t offset);

// Names and JSON ("0.5", "\"text\"").
using JsonItems = std::vector<std::pair<std::string, std::string>>;

// W&B's JSON has NaN and Infinity.
std::string wandb_number(double value);

std::string wandb_header_record();

struct WandbRunRecord {
  std::string run_id, entity, project, display_name, host;
  JsonItems config;
  int64_t start_time_ms = 0;
  int64_t starting_step = 0;
  bool is_resumed = false;
};
std::string wandb_run_record(const WandbRunRecord& run);

struct WandbEnvironmentRecord {
  std::string os, program, root, host, user, executable, commit, writer_id;
  std::vector<std::string> arguments;
  int64_t start_time_ms = 0;
};
std::string wandb_environment_record(const WandbEnvironmentRecord& environment);

// In the folder `files`, to be uploaded.
std::string wandb_files_record(const std::vector<std::string>& paths);

// A step's and the run's numbers.
std::string wandb_history_record(const JsonItems& items, int64_t step);
std::string wandb_summary_record(const JsonItems& items, int64_t runtime_s);

std::string wandb_exit_record(int exit_code, int64_t runtime_s);

// From 1.
std::string wandb_numbered(std::string_view record, int64_t number);

}  // namespace megalith
