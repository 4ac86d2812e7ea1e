// See inspect_tokenizer.h.
#include "cli/inspect_tokenizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/help.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/strings.h"
#include "hub/hub.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {

struct TokenizerInspection {
  TokenizerOptions tokenizer;
  HubOptions hub;
  std::optional<std::string> text, encode_file, decode, decode_file;
  std::optional<std::string> chat_file;
  bool add_special_tokens = false, skip_special_tokens = false, json_strings = false;
  bool add_generation_prompt = false;
  int64_t measure_rounds = 0;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("text", text, "Text to encode; its ids are printed as a JSON array.");
    v.field("encode_file", encode_file, "File whose lines are encoded: one JSON array of ids a line.");
    v.field("json_strings", json_strings,
            "Lines of encode_file, and of what decode and decode_file print, are JSON strings, so that a text can hold "
            "line breaks.");
    v.field("decode", decode, "Ids to decode, as a JSON array or separated by commas or blanks.");
    v.field("decode_file", decode_file,
            "File with one JSON array of ids on each line; each is printed as a line of text.");
    v.field("chat_file", chat_file,
            "File with a conversation on each line, a JSON list of messages or an object with messages and tools: the "
            "model's chat template makes a text of each, whose ids are printed as a JSON array; with json_strings the "
            "text is printed.");
    v.field("add_generation_prompt", add_generation_prompt,
            "End the texts of chat_file with what makes the model answer.");
    v.field(
         "measure_rounds", measure_rounds,
         "Encode the lines of encode_file this often and print, instead of the ids, a JSON object with their bytes and "
         "tokens and each round's seconds, by the clock and of the CPU, on one thread.")
        .at_least(0);
    v.field("add_special_tokens", add_special_tokens, "Add the tokens that begin and end a text.");
    v.field("skip_special_tokens", skip_special_tokens, "Leave special tokens out of decoded text.");
    tokenizer.visit_standalone(v);
    hub.visit(v);
  }
};

// "[1, 2]", "1,2" or "1 2".
std::vector<int32_t> parse_ids(std::string_view text, std::string_view where) {
  std::string list(text);
  if (list.find('[') == std::string::npos) {
    std::replace(list.begin(), list.end(), ',', ' ');
    std::string joined;
    for (const std::string& word : split_words(list)) joined += (joined.empty() ? "" : ",") + word;
    list = fmt::format("[{}]", joined);
  }
  std::vector<int32_t> ids;
  for (const int64_t id : json_as<std::vector<int64_t>>(parse_json(list, where), where)) {
    if (id < INT32_MIN || id > INT32_MAX) throw UserError(fmt::format("{}: {} is no token id", where, id));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// Calls on_line(line, "file:number") for the lines of a file.
template <typename OnLine>
void for_each_file_line(const std::string& file, OnLine&& on_line) {
  const MappedFile mapped(file, MappedFile::Access::kSequential);
  const std::string_view text = mapped.text();
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    on_line(text.substr(begin, end - begin), fmt::format("{}:{}", file, number));
    begin = end + 1;
  }
}

void measure(const Tokenizer& tokenizer, const std::vector<std::string>& texts, int64_t rounds) {
  // This thread's: a machine that others use lengthens the seconds far more than the CPU time.
  const auto cpu_seconds = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  Json report = {{"bytes", 0}, {"tokens", 0}, {"seconds", Json::array()}, {"cpu_seconds", Json::array()}};
  for (int64_t round = 0; round < rounds; ++round) {
    size_t num_bytes = 0, num_tokens = 0;
    const auto start = std::chrono::steady_clock::now();
    const double cpu_start = cpu_seconds();
    for (const std::string& text : texts) {
      num_bytes += text.size();
      num_tokens += tokenizer.encode(text).size();
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    report["cpu_seconds"].push_back(cpu_seconds() - cpu_start);
    report["bytes"] = num_bytes;
    report["tokens"] = num_tokens;
    report["seconds"].push_back(elapsed.count());
  }
  print_out("{}\n", dump_json(report));
}

// Prints a file's conversations rendered by the model's chat template: texts, or their ids.
void print_conversations(const Tokenizer& tokenizer, const TokenizerInspection& options) {
  if (!options.tokenizer.tokenizer_model) {
    throw UserError("chat_file is given without tokenizer_model",
                    "the chat template lies beside the tokenizer: name its folder with --tokenizer_model");
  }
  const ChatTemplate chat = load_chat_template(*options.tokenizer.tokenizer_model);
  for_each_file_line(*options.chat_file, [&](std::string_view line, const std::string& where) {
    if (trim(line).empty()) return;
    const OrderedJson row = parse_ordered_json(line, where);
    const bool has_tools = row.is_object() && row.contains("tools");
    if (!row.is_array() && !(row.is_object() && row.contains("messages"))) {
      throw UserError(fmt::format("{} is no conversation", where),
                      "a line is a JSON list of messages, or an object with \"messages\" and perhaps \"tools\"");
    }
    const std::string text =
        chat.render(row.is_array() ? row : row["messages"], has_tools ? row["tools"] : OrderedJson(nullptr),
                    options.add_generation_prompt);
    print_out("{}\n", dump_json(options.json_strings ? Json(text) : Json(tokenizer.encode(text))));
  });
}

void describe(const Tokenizer& tokenizer) {
  print_out("{}\n  vocabulary {}\n", tokenizer.name(), tokenizer.vocab_size());
  const SpecialIds& ids = tokenizer.special_ids();
  const auto show = [](const char* what, const std::optional<int32_t>& id) {
    if (id) print_out("  {} {}\n", what, *id);
  };
  show("end of document", ids.eod);
  show("beginning of text", ids.bos);
  show("padding", ids.pad);
  show("class", ids.cls);
  show("separator", ids.sep);
  show("mask", ids.mask);
  if (!ids.extra.empty())
    print_out("  {} extra ids from {} to {}\n", ids.extra.size(), ids.extra.front(), ids.extra.back());
}

}  // namespace

int inspect_tokenizer(CommandContext& context) {
  TokenizerInspection options;
  OptionSet set(options);
  const auto words = context.read_words(set, "usage: megalith inspect tokenizer DIR [--text TEXT] [--encode_file F]");
  if (!words) return kExitSuccess;
  std::optional<std::string>& model = options.tokenizer.tokenizer_model;
  if (words->size() > 1 || (!words->empty() && model && *model != words->front())) {
    throw UserError(fmt::format("several tokenizers are given: {}{}", join(*words, ", "), model ? ", " + *model : ""),
                    "name one: inspect tokenizer DIR");
  }
  if (!words->empty()) model = words->front();
  resolve_hub_option("tokenizer_model", options.tokenizer.tokenizer_model, HubNeed::kTokenizer, context.environment,
                     options.hub, context.log);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  const auto print_ids = [&](std::string_view text) {
    print_out("{}\n", dump_json(Json(tokenizer->encode(text, options.add_special_tokens))));
  };
  const auto print_text = [&](std::string_view ids, std::string_view where) {
    const std::string text = tokenizer->decode(parse_ids(ids, where), options.skip_special_tokens);
    print_out("{}\n", options.json_strings ? dump_json(Json(text)) : text);
  };
  if (options.decode) print_text(*options.decode, "decode");
  if (options.decode_file) for_each_file_line(*options.decode_file, print_text);
  if (options.text) print_ids(*options.text);
  if (options.chat_file) print_conversations(*tokenizer, options);
  if (options.encode_file && options.measure_rounds > 0) {
    std::vector<std::string> texts;
    for_each_file_line(*options.encode_file, [&](std::string_view line, const std::string& where) {
      texts.push_back(options.json_strings ? json_as<std::string>(parse_json(line, where), where) : std::string(line));
    });
    measure(*tokenizer, texts, options.measure_rounds);
  } else if (options.encode_file) {
    for_each_file_line(*options.encode_file, [&](std::string_view line, const std::string& where) {
      if (options.json_strings) {
        print_ids(json_as<std::string>(parse_json(line, where), where));
      } else {
        print_ids(line);
      }
    });
  }
  const bool has_work =
      options.decode || options.decode_file || options.text || options.encode_file || options.chat_file;
  if (!has_work) describe(*tokenizer);
  return kExitSuccess;
}

CommandOptions inspect_tokenizer_options() { return options_of<TokenizerInspection>("inspect tokenizer"); }

}  // namespace megalith
