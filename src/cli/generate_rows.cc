#include "cli/generate_rows.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "cli/print.h"
#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "core/time.h"
#include "kinds/text/sft_messages.h"
#include "kinds/text/sft_rows.h"

namespace megalith {
namespace {

constexpr std::array<const char*, 4> kAnswerKeys = {"answer", "finish_reason", "prompt_tokens", "completion_tokens"};
// In a row they would be meant for its answer only, but they are options of all rows.
constexpr std::array<const char*, 8> kOptionKeys = {"temperature", "top_p",     "top_k",      "seed",
                                                    "stop",        "max_tokens", "max_new_tokens", "num_samples"};
constexpr size_t kShownErrors = 5;

void check_keys(const OrderedJson& row, const std::string& where) {
  const auto refuse = [&](const char* key, const char* remedy) {
    if (row.contains(key)) throw UserError(fmt::format("{}: the row has a key '{}'", where, key), remedy);
  };
  for (const char* key : kAnswerKeys) refuse(key, "rename it: the answer's row has a key of this name");
  for (const char* key : kOptionKeys) refuse(key, "give it for all rows as an option of generate, and rename the key");
  const int given = row.contains("prompt") + row.contains("prompt_ids") + row.contains("messages");
  if (given == 1) return;
  throw UserError(fmt::format("{}: the row has {} prompt, prompt_ids and messages", where, given == 0 ? "none of" : "several of"),
                  "give each row one of them");
}

std::vector<int64_t> prompt_ids_of(const OrderedJson& row, const ModelWords& words, const std::string& where) {
  if (row.contains("prompt_ids")) return json_as<std::vector<int64_t>>(Json(row["prompt_ids"]), where + ": prompt_ids");
  if (row.contains("messages")) {
    check_messages(row["messages"], where);
    const OrderedJson* tools = row.contains("tools") && !row["tools"].is_null() ? &row["tools"] : nullptr;
    return words.require_chat().prompt_ids(row["messages"], tools_of(tools, /*is_share_gpt=*/false, where));
  }
  const auto prompt = json_as<std::string>(Json(row["prompt"]), where + ": prompt");
  const std::vector<int32_t> ids = words.require_tokenizer().encode(prompt, /*add_special=*/true);
  return {ids.begin(), ids.end()};
}

// Writes rows in order, whenever they finish.
class AnswerFile {
 public:
  explicit AnswerFile(const std::optional<std::string>& path) : path_(path) {
    if (!path_) return;
    make_directories(std::filesystem::absolute(*path_).parent_path());
    stream_.open(part());
    if (!stream_) fail_file("write", part(), errno);
  }

  void add(size_t row, std::string line) {
    waiting_.emplace(row, std::move(line));
    for (auto next = waiting_.find(num_written_); next != waiting_.end(); next = waiting_.find(num_written_)) {
      if (path_) {
        stream_ << next->second << std::flush;
        if (!stream_) fail_file("write", part(), errno);
      } else {
        print_out("{}", next->second);
        std::fflush(stdout);
      }
      waiting_.erase(next);
      ++num_written_;
    }
  }

  void finish() {
    if (!path_) return;
    stream_.close();
    std::filesystem::rename(part(), *path_);
  }

 private:
  // Left by an interrupted run.
  std::string part() const { return *path_ + ".part"; }

  std::optional<std::string> path_;
  std::ofstream stream_;
  std::map<size_t, std::string> waiting_;
  size_t num_written_ = 0;
};

// A row being answered.
struct OpenRow {
  std::optional<AnswerText> text;
  std::string answer;
  std::vector<int64_t> ids;
};

}  // namespace

Conversation read_conversation(const std::string& file) {
  OrderedJson json = parse_ordered_json(read_stream(file == "-" ? "/dev/stdin" : file), file);
  Conversation conversation;
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      if (key != "messages" && key != "tools") {
        throw UserError(fmt::format("{}: '{}' is no part of a conversation", file, key),
                        "give an object with messages and perhaps tools, or only the list of messages");
      }
    }
    const bool has_tools = json.contains("tools") && !json["tools"].is_null();
    conversation.tools = tools_of(has_tools ? &json["tools"] : nullptr, /*is_share_gpt=*/false, file);
    json = json.contains("messages") ? json["messages"] : OrderedJson();
  }
  check_messages(json, file);
  conversation.messages = std::move(json);
  return conversation;
}

std::vector<PromptRow> read_prompt_rows(const std::string& file, const ModelWords& words,
                                        const GenerationRequest& usual, const ModelConfig& model) {
  SftReader reader({file}, std::nullopt, std::nullopt);
  std::vector<PromptRow> rows;
  std::vector<UserError> errors;
  while (const std::optional<SftLine> line = reader.next()) {
    try {
      const std::string where = line->where();
      PromptRow& row = rows.emplace_back();
      row.row = parse_ordered_json(line->json, where);
      if (!row.row.is_object()) throw UserError(where + ": the row is no object", "give one JSON object a line");
      check_keys(row.row, where);
      row.request = usual;
      row.request.prompt_ids = prompt_ids_of(row.row, words, where);
      if (row.row.contains("messages") && !usual.stop_ids.empty()) row.request.stop_ids = words.answer_ends();
      row.request.sampling.sampling_seed += std::ssize(rows) - 1;
      try {
        check_generation(model, row.request, "max_new_tokens");
      } catch (const UserError& error) {
        throw UserError(fmt::format("{}: {}", where, error.message()), error.remedy());
      }
    } catch (const UserError& error) {
      errors.push_back(error);
      if (errors.size() == kShownErrors) break;
    }
  }
  if (!errors.empty()) throw UserErrors(std::move(errors));
  if (rows.empty()) throw UserError(file + " has no row", "give a JSON object with prompt or messages a line");
  return rows;
}

int64_t answer_rows(TextBatch& batch, const std::vector<PromptRow>& rows, const ModelWords& words,
                    const std::vector<std::string>& stop_texts, const std::optional<std::string>& output,
                    bool is_speaker, Logger& log) {
  std::optional<AnswerFile> file;
  if (is_speaker) file.emplace(output);
  std::optional<Progress> progress;
  if (is_speaker && output) progress.emplace(log, "generate", std::ssize(rows), "rows");
  std::map<int64_t, OpenRow> open;
  int64_t num_tokens = 0;
  const auto finish = [&](int64_t key, bool is_stop) {
    OpenRow& row = open.at(key);
    if (row.text) row.answer += row.text->finish();
    OrderedJson answer = rows[static_cast<size_t>(key)].row;
    answer["answer"] = words.tokenizer() != nullptr ? OrderedJson(row.answer) : OrderedJson(row.ids);
    answer["finish_reason"] = is_stop ? "stop" : "length";
    answer["prompt_tokens"] = rows[static_cast<size_t>(key)].request.prompt_ids.size();
    answer["completion_tokens"] = row.ids.size();
    if (file) file->add(static_cast<size_t>(key), dump_json(answer) + "\n");
    if (progress) progress->advance();
    open.erase(key);
  };
  for (size_t next = 0; next < rows.size() || !batch.is_empty();) {
    while (next < rows.size() && batch.has_room()) {
      const auto key = static_cast<int64_t>(next);
      batch.add(key, rows[next].request);
      OpenRow& row = open[key];
      if (words.tokenizer() != nullptr) {
        row.text.emplace(*words.tokenizer(), stop_texts, text_before(batch.config(), rows[next].request));
      }
      ++next;
    }
    for (const GeneratedToken& token : batch.step()) {
      OpenRow& row = open.at(token.key);
      row.ids.push_back(token.id);
      ++num_tokens;
      if (row.text) row.answer += row.text->push(token.id);
      const bool is_stopped = row.text && row.text->is_stopped();
      if (!token.is_last && !is_stopped) continue;
      batch.remove(token.key);
      finish(token.key, token.is_stop || is_stopped);
    }
  }
  if (progress) progress->finish();
  if (file) file->finish();
  return num_tokens;
}

}  // namespace megalith
