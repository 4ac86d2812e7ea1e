#include "metrics/wandb_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>

#include "metrics/protobuf.h"

namespace megalith {
namespace {

constexpr int64_t kBlockBytes = 32768;
constexpr int64_t kFrameHeaderBytes = 7;

enum class Frame : uint8_t { kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

void put_frame(std::string& out, Frame kind, std::string_view data) {
  const auto kind_byte = static_cast<uint8_t>(kind);
  uLong crc = ::crc32(0, &kind_byte, 1);
  crc = ::crc32(crc, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size()));
  put_little_endian(out, static_cast<uint32_t>(crc));
  put_little_endian(out, static_cast<uint16_t>(data.size()));
  out.push_back(static_cast<char>(kind));
  out += data;
}

std::string in_field(uint64_t field, std::string_view message) {
  std::string record;
  put_bytes(record, field, message);
  return record;
}

void put_text(std::string& message, uint64_t field, std::string_view text) {
  if (!text.empty()) put_bytes(message, field, text);
}

// google.protobuf.Timestamp
std::string timestamp(int64_t ms) {
  std::string message;
  put_number(message, 1, static_cast<uint64_t>(ms / 1000));
  put_number(message, 2, static_cast<uint64_t>(ms % 1000 * 1'000'000));
  return message;
}

// HistoryItem, SummaryItem { string key = 1; repeated string nested_key = 2; string value_json = 16; }
std::string item(const std::vector<std::string_view>& nested_key, std::string_view value) {
  std::string message;
  for (const std::string_view key : nested_key) put_bytes(message, 2, key);
  put_bytes(message, 16, value);
  return message;
}

}  // namespace

std::string wandb_file_header() {
  std::string header = ":W&B";
  put_little_endian(header, uint16_t{0xbee1});
  header.push_back(0);
  return header;
}

std::string wandb_frames(std::string_view record, int64_t offset) {
  std::string frames;
  bool is_first = true, is_last = false;
  while (!is_last) {
    const int64_t place = offset + static_cast<int64_t>(frames.size());
    const int64_t room = kBlockBytes - place % kBlockBytes - kFrameHeaderBytes;
    if (room < 0) {
      frames.append(static_cast<size_t>(room + kFrameHeaderBytes), '\0');
      continue;
    }
    const std::string_view part = record.substr(0, static_cast<size_t>(room));
    record.remove_prefix(part.size());
    is_last = record.empty();
    const Frame begun = is_last ? Frame::kWhole : Frame::kFirst, continued = is_last ? Frame::kLast : Frame::kMiddle;
    put_frame(frames, is_first ? begun : continued, part);
    is_first = false;
  }
  return frames;
}

std::string wandb_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return fmt::format("{}", value);
}

// HeaderRecord { VersionInfo version_info = 1; }  VersionInfo { string producer = 1; string min_consumer = 2; }
std::string wandb_header_record() {
  std::string version, header;
  put_bytes(version, 1, "megalith");
  put_bytes(version, 2, "0.9.0");  // the oldest wandb with every field
  put_bytes(header, 1, version);
  return in_field(21, header);
}

// RunRecord { string run_id = 1; string entity = 2; string project = 3; ConfigRecord config = 4;
//             string display_name = 8; string host = 13; int64 starting_step = 14; Timestamp start_time = 17;
//             bool resumed = 18; }
// ConfigRecord { repeated ConfigItem update = 1; }  ConfigItem { string key = 1; string value_json = 16; }
std::string wandb_run_record(const WandbRunRecord& run) {
  std::string config, message;
  for (const auto& [key, value] : run.config) {
    std::string entry;
    put_bytes(entry, 1, key);
    put_bytes(entry, 16, value);
    put_bytes(config, 1, entry);
  }
  put_bytes(message, 1, run.run_id);
  put_text(message, 2, run.entity);
  put_bytes(message, 3, run.project);
  put_bytes(message, 4, config);
  put_text(message, 8, run.display_name);
  put_text(message, 13, run.host);
  if (run.starting_step > 0) put_number(message, 14, static_cast<uint64_t>(run.starting_step));
  put_bytes(message, 17, timestamp(run.start_time_ms));
  if (run.is_resumed) put_number(message, 18, 1);
  return in_field(17, message);
}

// EnvironmentRecord { string os = 1; Timestamp started_at = 3; repeated string args = 5; string program = 6;
//                     GitRepoRecord git = 9; string root = 11; string host = 12; string username = 13;
//                     string executable = 14; string writer_id = 199; }
// GitRepoRecord { string remote_url = 1; string commit = 2; }
std::string wandb_environment_record(const WandbEnvironmentRecord& environment) {
  std::string message, git;
  put_text(message, 1, environment.os);
  put_bytes(message, 3, timestamp(environment.start_time_ms));
  for (const std::string& argument : environment.arguments) put_bytes(message, 5, argument);
  put_text(message, 6, environment.program);
  put_text(git, 2, environment.commit);
  put_text(message, 9, git);
  put_text(message, 11, environment.root);
  put_text(message, 12, environment.host);
  put_text(message, 13, environment.user);
  put_text(message, 14, environment.executable);
  put_bytes(message, 199, environment.writer_id);
  return in_field(26, message);
}

// FilesRecord { repeated FilesItem files = 1; }  FilesItem { string path = 1; FileType type = 3; }; type 1 is W&B's
// own, uploaded without asking.
std::string wandb_files_record(const std::vector<std::string>& paths) {
  std::string message;
  for (const std::string& path : paths) {
    std::string file;
    put_bytes(file, 1, path);
    put_number(file, 3, 1);
    put_bytes(message, 1, file);
  }
  return in_field(6, message);
}

// HistoryRecord { repeated HistoryItem item = 1; HistoryStep step = 2; }  HistoryStep { int64 num = 1; }
std::string wandb_history_record(const JsonItems& items, int64_t step) {
  std::string message, number;
  for (const auto& [key, value] : items) put_bytes(message, 1, item({key}, value));
  put_number(number, 1, static_cast<uint64_t>(step));
  put_bytes(message, 2, number);
  return in_field(2, message);
}

// SummaryRecord { repeated SummaryItem update = 1; }
std::string wandb_summary_record(const JsonItems& items, int64_t runtime_s) {
  std::string message;
  for (const auto& [key, value] : items) put_bytes(message, 1, item({key}, value));
  put_bytes(message, 1, item({"_wandb", "runtime"}, std::to_string(runtime_s)));
  return in_field(3, message);
}

// RunExitRecord { int32 exit_code = 1; int32 runtime = 2; }
std::string wandb_exit_record(int exit_code, int64_t runtime_s) {
  std::string message;
  put_number(message, 1, static_cast<uint64_t>(static_cast<int64_t>(exit_code)));
  put_number(message, 2, static_cast<uint64_t>(runtime_s));
  return in_field(18, message);
}

std::string wandb_numbered(std::string_view record, int64_t number) {
  std::string numbered;
  put_number(numbered, 1, static_cast<uint64_t>(number));
  numbered += record;
  return numbered;
}

}  // namespace megalith
