#include "data/prepare_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/system_call.h"
#include "data/prepare_encoder.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kStateFile = "state.json";

bool is_of_job(const Json& stored, const std::string& job, const std::string& where) {
  return is_same_job(get_member(stored, "job", where), parse_json(job, "job"));
}

// Raise when a new version writes other bytes for the same job.
constexpr int kJobVersion = 1;
// Above any run's bytes, lines or documents; sums stay far below the int64_t limit.
constexpr int64_t kMostCounted = int64_t{1} << 53;

OrderedJson problems_to_json(const std::vector<InputProblem>& problems) {
  OrderedJson list = OrderedJson::array();
  for (const InputProblem& p : problems) list.push_back({p.file, p.line, p.reason});
  return list;
}

const Json& get_rows(const Json& d, const char* key, size_t size, const std::string& where) {
  const Json& list = get_member(d, key, where);
  const auto is_row = [size](const Json& row) { return row.is_array() && row.size() == size; };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_row)) {
    throw UserError(fmt::format("{}: {} is no list of rows of {}", where, key, size));
  }
  return list;
}

std::vector<InputProblem> problems_from_json(const Json& d, const char* key, const std::string& where) {
  std::vector<InputProblem> problems;
  for (const Json& row : get_rows(d, key, 3, where)) {
    const std::string what = fmt::format("{}: {}", where, key);
    problems.push_back(
        {json_as<std::string>(row[0], what), json_as<int64_t>(row[1], what), json_as<std::string>(row[2], what)});
  }
  return problems;
}

}  // namespace

OrderedJson to_json(const PrepareState& state) {
  OrderedJson d;
  d["input"] = state.position.input;
  d["offset"] = state.position.offset;
  d["line"] = state.position.line;
  d["taken"] = state.position.input_bytes;
  d["checksum"] = state.position.checksum;
  d["input_bytes"] = state.input_bytes;
  const PrepareReport& r = state.report;
  d["documents"] = r.documents;
  d["num_empty_lines"] = r.num_empty_lines;
  d["num_empty_documents"] = r.num_empty_documents;
  d["num_broken_lines"] = r.num_broken_lines;
  d["empty_lines"] = problems_to_json(r.empty_lines);
  d["empty_documents"] = problems_to_json(r.empty_documents);
  d["broken_lines"] = problems_to_json(r.broken_lines);
  d["elapsed_s"] = r.elapsed_s;
  return d;
}

PrepareState prepare_state_of(const Json& d, const std::string& where) {
  const auto count = [&](const char* key) { return json_get_whole(d, key, 0, kMostCounted, where); };
  PrepareState state;
  state.position = {.input = static_cast<size_t>(count("input")),
                    .offset = count("offset"),
                    .line = count("line"),
                    .input_bytes = count("taken"),
                    .checksum = json_get<uint64_t>(d, "checksum", where)};
  state.input_bytes = count("input_bytes");
  PrepareReport& r = state.report;
  r.documents = count("documents");
  r.num_empty_lines = count("num_empty_lines");
  r.num_empty_documents = count("num_empty_documents");
  r.num_broken_lines = count("num_broken_lines");
  r.empty_lines = problems_from_json(d, "empty_lines", where);
  r.empty_documents = problems_from_json(d, "empty_documents", where);
  r.broken_lines = problems_from_json(d, "broken_lines", where);
  r.elapsed_s = json_get<double>(d, "elapsed_s", where);
  return state;
}

fs::path prepare_folder_of(const std::string& output_prefix) { return output_prefix + ".prepare"; }

bool is_same_job(Json made, Json asked) {
  if (!made.is_object() || !asked.is_object()) return false;
  // Compare tokenizers by digest, not location; records of earlier versions have only the latter.
  const char* ignored = made.contains("tokenizer_digest") ? "tokenizer" : "tokenizer_digest";
  made.erase(ignored);
  asked.erase(ignored);
  return made == asked;
}

std::optional<Json> load_work_state(const fs::path& file, const std::string& job, Logger& log) {
  if (!fs::exists(file)) return std::nullopt;
  try {
    const Json stored = load_json(file);
    if (is_of_job(stored, job, file.string())) return get_member(stored, "state", file.string());
    log.note("{} holds an unfinished run with other inputs or options: beginning anew", file.parent_path().string());
  } catch (const std::exception& error) {
    log.warn("the unfinished run cannot be taken up ({}): beginning anew", error.what());
  }
  return std::nullopt;
}

void store_work_state(const fs::path& file, const std::string& job, const OrderedJson& state) {
  write_file_atomic(file, dump_json_pretty(OrderedJson{{"job", OrderedJson::parse(job)}, {"state", state}}));
}

ResumableOutputs::ResumableOutputs(const std::string& output_prefix, std::vector<Output> outputs, std::string job)
    : folder_(prepare_folder_of(output_prefix)), outputs_(std::move(outputs)), job_(std::move(job)) {
  make_directories(folder_);
  for (const fs::directory_entry& entry : list_folder(folder_)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = name.starts_with("part") || name.starts_with("long") || name == kStateFile ||
                         name.starts_with(fmt::format(".{}.", kStateFile));
    if (is_ours) continue;
    throw UserError(fmt::format("{} is where prepare keeps unfinished work, and it holds {}", folder_.string(), name),
                    "it would be deleted: move it away, or choose another output_prefix");
  }
  lock_ = retry_interrupted([&] { return ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  // Without file system locks no one is excluded.
  if (lock_ >= 0 && retry_interrupted([&] { return ::flock(lock_, LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK) {
    close_descriptor(lock_);
    throw UserError(fmt::format("another process is preparing {}", output_prefix),
                    "wait for it, or choose another output_prefix");
  }
}

ResumableOutputs::~ResumableOutputs() {
  writers_.clear();
  if (!has_state_) try_remove_tree(folder_);
  if (lock_ >= 0) close_descriptor(lock_);
}

bool ResumableOutputs::take_up(const std::function<void(const Json&, const std::string&)>& read, Logger& log) {
  const fs::path file = folder_ / kStateFile;
  if (const std::optional<Json> state = load_work_state(file, job_, log)) {
    try {
      const std::string where = file.string() + ": state", what = where + ": writers";
      read(*state, where);
      std::vector<IndexedDatasetWriter::Position> positions;
      for (const Json& row : get_rows(*state, "writers", 3, where)) {
        positions.push_back(
            {json_as<int64_t>(row[0], what), json_as<int64_t>(row[1], what), json_as<int64_t>(row[2], what)});
      }
      if (positions.size() != outputs_.size()) throw UserError(fmt::format("{} is about other outputs", file.string()));
      begin(positions);
      has_state_ = true;
      return true;
    } catch (const std::exception& error) {
      log.warn("the unfinished run cannot be taken up ({}): beginning anew", error.what());
    }
  }
  clear();
  begin(std::vector<IndexedDatasetWriter::Position>(outputs_.size()));
  return false;
}

void ResumableOutputs::begin(const std::vector<IndexedDatasetWriter::Position>& positions) {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const std::string part = (folder_ / fmt::format("part{}", i)).string();
    writers_.emplace_back(outputs_[i].prefix, outputs_[i].type, part, positions[i]);
  }
}

void ResumableOutputs::store(OrderedJson state) {
  for (IndexedDatasetWriter& writer : writers_) {
    const IndexedDatasetWriter::Position p = writer.checkpoint();
    state["writers"].push_back({p.num_sequences, p.num_documents, p.num_tokens});
  }
  store_work_state(folder_ / kStateFile, job_, state);
  has_state_ = true;
}

void ResumableOutputs::clear() {
  writers_.clear();
  has_state_ = false;
  // State first: without it the parts mean nothing.
  remove_tree(folder_ / kStateFile);
  for (const fs::directory_entry& entry : list_folder(folder_)) remove_tree(entry.path());
}

void ResumableOutputs::remove() {
  clear();
  remove_tree(folder_);
}

bool holds_unfinished(const std::string& output_prefix, const std::string& job) {
  const fs::path path = prepare_folder_of(output_prefix) / kStateFile;
  if (!fs::exists(path)) return false;
  try {
    return is_of_job(load_json(path), job, path.string());
  } catch (const UserError&) {
    return false;  // damaged: would start anew
  }
}

OrderedJson inputs_to_json(const std::vector<PrepareInput>& inputs) {
  OrderedJson list;
  for (const PrepareInput& input : inputs) {
    list.push_back({input.path, input.bytes, input.modified_ns, input.is_plain_text});
  }
  return list;
}

std::string job_of(const PrepareOptions& options, const std::vector<PrepareInput>& inputs, const Tokenizer& tokenizer) {
  OrderedJson d;
  d["version"] = kJobVersion;
  d["inputs"] = inputs_to_json(inputs);
  d["json_keys"] = options.json_keys;
  d["append_eod"] = options.append_eod;
  d["add_special_tokens"] = options.add_special_tokens;
  d["split_sentences"] = options.split_sentences;
  d["keep_newlines"] = options.keep_newlines;
  d["max_line_bytes"] = options.max_line_memory / kLineMemory;
  d["tokenizer"] = tokenizer.name();
  d["tokenizer_digest"] = tokenizer_digest(tokenizer, tokenizer.vocab_size());
  d["vocab_size"] = tokenizer.vocab_size();
  return d.dump();
}

}  // namespace megalith
