#include "data/prepared_outputs.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/output_file.h"
#include "data/prepare_state.h"
#include "data/throw_errors.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostRecorded = int64_t{1} << 53;  // as in prepare_state.cc

fs::path record_of(const std::string& prefix) { return prefix + ".prepared"; }

int64_t file_bytes(const std::string& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  return error ? -1 : static_cast<int64_t>(bytes);
}

// The record, if it is about the files beside it.
std::optional<Json> load_record(const std::string& prefix) {
  const fs::path path = record_of(prefix);
  if (!fs::exists(path)) return std::nullopt;
  try {
    Json record = load_json(path);
    const std::string where = path.string();
    const bool is_about_them = json_get<int64_t>(record, "bin_bytes", where) == file_bytes(prefix + ".bin") &&
                               json_get<int64_t>(record, "idx_bytes", where) == file_bytes(prefix + ".idx");
    if (!is_about_them || !get_member(record, "job", where).is_object()) return std::nullopt;
    return record;
  } catch (const UserError&) {
    return std::nullopt;  // damaged: sources unknown
  }
}

// True if the record is about the existing .bin.
bool is_recorded_bin(const std::string& prefix) {
  try {
    const std::string path = record_of(prefix).string();
    return fs::exists(path) && json_get<int64_t>(load_json(path), "bin_bytes", path) == file_bytes(prefix + ".bin");
  } catch (const UserError&) {
    return false;
  }
}

// "made from other inputs (a.jsonl and 2 more)".
std::string how_made(const Json& made, const Json& asked, bool is_repeatable) {
  const Json* theirs = find_member(made, "inputs", "job");
  if (theirs == nullptr || !theirs->is_array() || theirs->empty()) return "made from other inputs";
  if (*theirs == get_member(asked, "inputs", "job")) {
    return is_repeatable ? "made from the same inputs with other options" : "made from another standard input";
  }
  const Json& first = theirs->front();
  const std::string* name = first.is_array() && !first.empty() ? try_text(first[0]) : nullptr;
  if (name == nullptr) return "made from other inputs";
  const std::string more = theirs->size() > 1 ? fmt::format(" and {} more", theirs->size() - 1) : "";
  return fmt::format("made from other inputs, or from these before they changed ({}{})", *name, more);
}

struct MadeBy {
  std::string name, digest;  // no digest: an earlier version's record
  int64_t num_ids = 0;
  std::string describe() const { return fmt::format("{} of {} ids", name, num_ids); }
};

std::optional<MadeBy> made_by(const std::string& prefix) {
  const std::optional<Json> record = load_record(prefix);
  if (!record) return std::nullopt;
  const Json& made = get_member(*record, "job", record_of(prefix).string());
  const auto text = [&](const char* key, const char* otherwise) {
    const Json* member = find_member(made, key, "job");
    const std::string* value = member == nullptr ? nullptr : try_text(*member);
    return value == nullptr ? std::string(otherwise) : *value;
  };
  const Json* size = find_member(made, "vocab_size", "job");
  const int64_t num_ids = size == nullptr ? -1 : try_whole_number(*size).value_or(-1);
  if (num_ids < 0) return std::nullopt;
  return MadeBy{text("tokenizer", "one"), text("tokenizer_digest", ""), num_ids};
}

}  // namespace

std::optional<std::vector<PrepareReport::Output>> find_prepared(const std::vector<std::string>& prefixes,
                                                                const std::string& job, bool is_repeatable) {
  const Json asked = parse_json(job, "job");
  std::vector<PrepareReport::Output> found;
  std::vector<UserError> errors;
  for (const std::string& prefix : prefixes) {
    if (!fs::exists(prefix + ".idx")) {
      // .idx comes last: without it the .bin may be a killed run's, which the record then matches.
      auto taken = is_recorded_bin(prefix) ? std::nullopt : check_replaceable("output", prefix + ".bin", {}, false);
      if (taken) errors.push_back(std::move(*taken));
      continue;
    }
    const std::optional<Json> record = load_record(prefix);
    const std::string where = record_of(prefix).string();
    const Json* made = record ? &get_member(*record, "job", where) : nullptr;
    if (made == nullptr || !is_repeatable || !is_same_job(*made, asked)) {
      const std::string how = made ? how_made(*made, asked, is_repeatable) : "and nothing says from what it was made";
      errors.emplace_back(fmt::format("{}.idx is there already, {}", prefix, how),
                          "replace it with --overwrite, or choose another output_prefix");
      continue;
    }
    const auto count = [&](const char* key) { return json_get_whole(*record, key, 0, kMostRecorded, where); };
    found.push_back({.prefix = prefix,
                     .documents = count("documents"),
                     .tokens = count("tokens"),
                     .sequences = count("sequences"),
                     .bytes = count("bin_bytes")});
  }
  throw_errors(errors);
  if (found.size() < prefixes.size()) return std::nullopt;
  return found;
}

std::optional<UserError> find_other_tokenizer(const std::string& prefix, const Tokenizer& tokenizer,
                                              std::map<int64_t, std::string>& digests) {
  const std::optional<MadeBy> made = made_by(prefix);
  if (!made) return std::nullopt;
  if (made->digest.empty()) {  // an earlier version's record has only the size
    if (made->num_ids == tokenizer.vocab_size()) return std::nullopt;
  } else if (made->num_ids <= tokenizer.vocab_size()) {
    std::string& digest = digests[made->num_ids];
    // 0.1 s for a large vocabulary.
    if (digest.empty()) digest = tokenizer_digest(tokenizer, made->num_ids);
    if (made->digest == digest) return std::nullopt;
  }
  return UserError(
      fmt::format("{} was prepared with another tokenizer ({}) than this run has ({} of {} ids)", prefix,
                  made->describe(), tokenizer.name(), tokenizer.vocab_size()),
      "name that tokenizer, or prepare the texts again; --allow_other_tokenizer takes the ids as they are");
}

std::optional<UserError> find_mixed_tokenizers(const std::vector<std::string>& prefixes) {
  std::optional<MadeBy> first;
  std::string first_prefix;
  for (const std::string& path : prefixes) {
    const std::string prefix = data_prefix(path);
    std::optional<MadeBy> made = made_by(prefix);
    if (!made) continue;
    if (!first) {
      first = std::move(made);
      first_prefix = prefix;
      continue;
    }
    const bool has_digests = !made->digest.empty() && !first->digest.empty();
    if (made->num_ids == first->num_ids && (!has_digests || made->digest == first->digest)) continue;
    return UserError(fmt::format("{} and {} were prepared with different tokenizers ({}, and {})", first_prefix, prefix,
                                 first->describe(), made->describe()),
                     "prepare the texts again with one tokenizer; --allow_other_tokenizer takes the ids as they are");
  }
  return std::nullopt;
}

void forget_prepared(const std::string& prefix) { remove_tree(record_of(prefix)); }

void record_prepared(const PrepareReport::Output& output, const std::string& job) {
  OrderedJson record;
  record["documents"] = output.documents;
  record["sequences"] = output.sequences;
  record["tokens"] = output.tokens;
  record["bin_bytes"] = file_bytes(output.prefix + ".bin");
  record["idx_bytes"] = file_bytes(output.prefix + ".idx");
  record["job"] = OrderedJson::parse(job);
  write_file_atomic(record_of(output.prefix), dump_json_pretty(record));
}

}  // namespace megalith
