// What finished outputs were made from; see prepared_outputs.h.
#include "data/prepared_outputs.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/resolve.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "data/prepare_state.h"

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

// The record, when the files beside it are those that it is about.
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
    return std::nullopt;  // damaged: then nothing says what they were made from
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

}  // namespace

std::optional<std::vector<PrepareReport::Output>> find_prepared(const std::vector<std::string>& prefixes,
                                                                const std::string& job, bool is_repeatable) {
  const Json asked = parse_json(job, "job");
  std::vector<PrepareReport::Output> found;
  std::vector<UserError> errors;
  for (const std::string& prefix : prefixes) {
    // .idx comes last: without it a .bin is what a killed run left.
    if (!fs::exists(prefix + ".idx")) continue;
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
  if (errors.size() == 1) throw errors.front();
  throw_if_any(errors);
  if (found.size() < prefixes.size()) return std::nullopt;
  return found;
}

std::optional<UserError> find_other_tokenizer(const std::string& prefix, const Tokenizer& tokenizer,
                                              std::map<int64_t, std::string>& digests) {
  const std::optional<Json> record = load_record(prefix);
  if (!record) return std::nullopt;
  const Json& made = get_member(*record, "job", record_of(prefix).string());
  const Json *size = find_member(made, "vocab_size", "job"), *name = find_member(made, "tokenizer", "job");
  const Json* made_digest = find_member(made, "tokenizer_digest", "job");
  const int64_t num_ids = size == nullptr ? -1 : try_whole_number(*size).value_or(-1);
  const std::string *theirs = made_digest == nullptr ? nullptr : try_text(*made_digest),
                    *where = name == nullptr ? nullptr : try_text(*name);
  if (theirs == nullptr || num_ids < 0) {  // a record of an earlier version knows no more than the size
    if (num_ids < 0 || num_ids == tokenizer.vocab_size()) return std::nullopt;
  } else if (num_ids <= tokenizer.vocab_size()) {
    std::string& digest = digests[num_ids];
    if (digest.empty()) digest = tokenizer_digest(tokenizer, num_ids);  // a tenth of a second for a large vocabulary
    if (*theirs == digest) return std::nullopt;
  }
  return UserError(
      fmt::format("{} was prepared with another tokenizer ({} of {} ids) than this run has ({} of {} ids)", prefix,
                  where == nullptr ? "one" : *where, num_ids, tokenizer.name(), tokenizer.vocab_size()),
      "name that tokenizer, or prepare the texts again; --allow_other_tokenizer takes the ids as they are");
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
