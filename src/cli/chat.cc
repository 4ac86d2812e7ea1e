// megalith chat: a conversation with a model in a terminal, by its chat template.
#include <algorithm>
#include <csignal>
#include <deque>
#include <nlohmann/json.hpp>

#include "cli/chat_screen.h"
#include "cli/generate_rows.h"
#include "cli/help.h"
#include "cli/print.h"
#include "cli/session.h"
#include "cli/text_ranks.h"
#include "cli/within_memory.h"
#include "comm/share_text.h"
#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "core/time.h"
#include "kinds/kinds.h"
#include "kinds/text/model_words.h"
#include "kinds/text/published_sampling.h"
#include "kinds/text/text_batch.h"
#include "train/inference_memory.h"
#include "train/setup.h"

namespace megalith {
namespace {

constexpr const char* kChatUsage =
    "usage: megalith chat --load DIR|--load_hf DIR [--adapter DIR] [--system TEXT] [--option value ...]";
constexpr const char* kChatCommands =
    "/reset     begin anew, with the same system message\n"
    "/undo      take back the last message and its answer\n"
    "/retry     another answer to the last message\n"
    "/system X  begin anew with the system message X\n"
    "/save F    write the conversation to F, for --messages and for instruction data\n"
    "/exit      end, as Ctrl-D does; Ctrl-C stops an answer\n"
    "A line that ends with \\ goes on in the next one.\n";

struct ChatOptions {
  std::optional<std::string> system, messages;
  std::vector<std::string> stop;
  int64_t max_new_tokens = 1024;
  bool show_thinking = false;

  void visit(OptionVisitor& v) {
    v.group("Conversation");
    v.field("system", system, "System message with which the conversation begins.");
    v.field("messages", messages,
            "File with the conversation so far: a JSON list of messages, or an object with messages and tools.")
        .by_rank(ByRank::kSameContents);
    v.field("stop", stop, "Texts that end an answer and are no part of it.");
    v.field("max_new_tokens", max_new_tokens, "Most tokens of an answer.").unit("tokens").at_least(1);
    v.field("show_thinking", show_thinking, "Print what the model writes between <think> and </think>.");
  }
};

// Set by Ctrl-C; a signal handler can reach nothing else.
volatile std::sig_atomic_t is_interrupted = 0;

// No SA_RESTART: the prompt's read must be interrupted too.
void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { is_interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
}

class Chat {
 public:
  Chat(const Session& session, const ChatOptions& options, const ModelWords& words, PipelinedModel& model,
       GenerationRequest usual, Conversation begin)
      : options_(options),
        words_(words),
        world_(*session.groups.world),
        usual_(std::move(usual)),
        batch_(model, {.row_multiple = generation_row_multiple(*session.resolved),
                       .most_past_tokens = model.config().max_position_embeddings},
               session.device),
        longest_(model.config().max_position_embeddings),
        begin_(std::move(begin)) {
    if (options.system) set_system(*options.system);
    begin_anew();
  }

  void run() {
    if (world_.is_first() && screen_.is_terminal()) screen_.say("/help lists what can be done, Ctrl-D ends.\n");
    // A conversation that was handed over and waits for an answer gets it.
    if (is_unanswered()) answer();
    while (const std::optional<std::string> line = next_line()) {
      if (line->starts_with('/') && obey(*line)) continue;
      if (is_over_) return;
      if (trim(*line).empty()) continue;
      take(*line);
    }
  }

 private:
  void set_system(const std::string& text) {
    OrderedJson& messages = begin_.messages;
    if (!messages.empty() && messages[0]["role"] == "system") messages.erase(0);
    messages.insert(messages.begin(), OrderedJson{{"role", "system"}, {"content", text}});
  }

  void begin_anew() {
    talk_ = begin_;
    pending_calls_.clear();
  }

  bool is_unanswered() const {
    const OrderedJson& messages = talk_.messages;
    return !messages.empty() && messages.back()["role"] != "assistant" && messages.back()["role"] != "system";
  }

  // The same line on every rank; nothing at the end.
  std::optional<std::string> next_line() {
    std::optional<std::string> line;
    if (world_.is_first()) line = screen_.read_line(pending_calls_.empty() ? "> " : call_name() + " returns> ");
    return share_text(std::move(line), world_, "line");
  }

  // Every rank stops at the same token.
  bool is_interrupted_on_first() {
    const auto own = is_interrupted != 0 ? std::optional(std::string()) : std::nullopt;
    return share_text(own, world_, "interrupt").has_value();
  }

  std::string call_name() const { return pending_calls_.front(); }

  // Takes a tool's result if the model waits for one, else the user's message.
  void take(const std::string& line) {
    if (pending_calls_.empty()) {
      talk_.messages.push_back({{"role", "user"}, {"content", line}});
    } else {
      talk_.messages.push_back({{"role", "tool"}, {"name", call_name()}, {"content", line}});
      pending_calls_.pop_front();
      if (!pending_calls_.empty()) return;
    }
    answer();
  }

  void take_back(bool keeps_question) {
    pending_calls_.clear();
    OrderedJson& messages = talk_.messages;
    while (messages.size() > begin_.messages.size() && messages.back()["role"] != "user") {
      messages.erase(messages.size() - 1);
    }
    if (!keeps_question && messages.size() > begin_.messages.size()) messages.erase(messages.size() - 1);
  }

  // False if the line is not a command; sets is_over_ at the end.
  bool obey(const std::string& line) {
    const size_t blank = line.find(' ');
    const std::string word = line.substr(0, blank);
    const std::string rest(blank == std::string::npos ? "" : trim(line.substr(blank)));
    if (word == "/reset") {
      begin_.messages = begin_.messages.empty() || begin_.messages[0]["role"] != "system"
                            ? OrderedJson::array()
                            : OrderedJson::array({begin_.messages[0]});
      begin_anew();
    } else if (word == "/undo") {
      take_back(/*keeps_question=*/false);
    } else if (word == "/retry") {
      take_back(/*keeps_question=*/true);
      if (is_unanswered()) {
        ++usual_.sampling.sampling_seed;
        answer();
      } else {
        say("There is no message to answer.\n");
      }
    } else if (word == "/system") {
      begin_.messages = OrderedJson::array();
      if (!rest.empty()) set_system(rest);
      begin_anew();
    } else if (word == "/save") {
      save(rest);
    } else if (word == "/exit" || word == "/quit") {
      is_over_ = true;
      return false;
    } else if (word == "/help") {
      say(kChatCommands);
    } else {
      say(fmt::format("{} is no command; /help lists them. Begin a message with a blank to send it.\n", word));
    }
    return true;
  }

  void save(const std::string& file) {
    if (!world_.is_first()) return;
    if (file.empty()) return say("Name a file: /save talk.json\n");
    OrderedJson saved = {{"messages", talk_.messages}};
    if (!talk_.tools.is_null()) saved["tools"] = talk_.tools;
    try {
      if (auto taken = check_replaceable("/save", file, "{\"messages\":", false)) throw *taken;
      write_file_atomic(file, dump_json(saved) + "\n");
      say(fmt::format("{} messages in {}\n", talk_.messages.size(), file));
    } catch (const UserError& error) {
      say(fmt::format("{}: {}\n", error.message(), error.remedy()));
    }
  }

  void say(std::string_view text) {
    if (world_.is_first()) screen_.say(text);
  }

  void answer() {
    GenerationRequest request = usual_;
    try {
      request.prompt_ids = words_.require_chat().prompt_ids(talk_.messages, talk_.tools);
      const int64_t left = longest_ - std::ssize(request.prompt_ids);
      if (left <= 0) {
        throw UserError(fmt::format("the conversation has {} tokens, and the model reads {}",
                                    request.prompt_ids.size(), longest_),
                        "/undo, or begin anew with /reset");
      }
      request.max_new_tokens = std::min(request.max_new_tokens, left);
      write_answer(request);
    } catch (const UserError& error) {
      say(fmt::format("{}: {}\n", error.message(), error.remedy()));
      take_back(/*keeps_question=*/false);
    }
  }

  void write_answer(const GenerationRequest& request) {
    is_interrupted = 0;
    const Tokenizer& tokenizer = words_.require_tokenizer();
    AnswerText text(tokenizer, options_.stop);
    const bool is_thinking = words_.require_chat().opens_thinking(request.prompt_ids);
    ThinkingFold fold(is_thinking, options_.show_thinking, screen_.is_terminal());
    std::string whole(is_thinking ? kThinkBegin : "");
    const auto show = [&](const std::string& piece) {
      whole += piece;
      say(fold.push(piece));
    };
    batch_.add(0, request);
    int64_t count = 0;
    const Stopwatch watch;
    while (!batch_.is_empty()) {
      const GeneratedToken token = batch_.step().front();
      ++count;
      if (!token.is_stop) show(text.push(token.id));
      if (text.is_stopped() || is_interrupted_on_first()) batch_.remove(0);
    }
    show(text.finish());
    say(fold.finish() + "\n");
    if (world_.is_first() && screen_.is_terminal()) {
      screen_.say_dimly(fmt::format("{} tokens, {:.1f} tokens/s\n", count, static_cast<double>(count) / watch.elapsed_s()));
    }
    is_interrupted = 0;
    remember(parse_answer(whole, !talk_.tools.is_null()));
  }

  void remember(const ParsedAnswer& parsed) {
    OrderedJson message = {{"role", "assistant"}, {"content", parsed.content}};
    for (const OrderedJson& call : parsed.tool_calls) {
      message["tool_calls"].push_back({{"type", "function"}, {"function", call}});
      pending_calls_.push_back(json_as<std::string>(Json(call["name"]), "the call's name"));
    }
    talk_.messages.push_back(std::move(message));
  }

  const ChatOptions& options_;
  const ModelWords& words_;
  Group& world_;
  ChatScreen screen_;
  GenerationRequest usual_;
  TextBatch batch_;
  int64_t longest_;
  Conversation begin_, talk_;
  std::deque<std::string> pending_calls_;  // tools whose results the model waits for
  bool is_over_ = false;
};

int chat(CommandContext& context, const Session& session, const Launch& launch, const ChatOptions& options) {
  const Resolved& run = *session.resolved;
  const ModelWords words(run);
  words.require_chat();
  const bool is_first = session.groups.world->is_first();
  GenerationRequest usual{.max_new_tokens = options.max_new_tokens, .stop_ids = words.answer_ends()};
  usual.sampling = run.config.sampling;
  if (const auto note = take_published_sampling(run, usual.sampling); note && is_first) context.log.note("{}", *note);
  if (words.note() && is_first) context.log.note("{}", *words.note());
  Conversation begin;
  if (options.messages) begin = read_conversation(*options.messages);
  // Any turn may fill the context.
  const int64_t longest = run.config.model.max_position_embeddings;
  const int64_t answer = std::min(options.max_new_tokens, longest - 1);
  const MemoryMeasure measure = estimate_generation(longest - answer, answer);
  return run_within_memory(session, launch, measure, [&](const MemoryEstimate&) {
    const BuiltModel built = build_model(run, session.groups, session.device);
    load_weights(run, built, session.groups, context.log);
    PipelinedModel model(built.view(), session.groups, session.device);
    catch_interrupts();
    Chat(session, options, words, model, std::move(usual), std::move(begin)).run();
    return kExitSuccess;
  });
}

std::vector<UserError> check_chat(const Resolved& run, const ChatOptions& options) {
  std::vector<UserError> errors;
  if (!writes_text(run.config.model)) {
    errors.emplace_back("chat needs a model that writes text from left to right, and this one does not",
                        "load a decoder that was tuned on conversations");
  }
  if (options.messages == "-") {
    errors.emplace_back("messages is standard input, where chat reads what you say", "name a file");
  }
  if (auto error = check_stop_texts(options.stop)) errors.push_back(std::move(*error));
  return errors;
}

}  // namespace

int run_chat(CommandContext& context) {
  const Launch launch = join_launch(context);
  ChatOptions options;
  std::unique_ptr<Resolved> resolved = run_before_session(context, launch, [&] {
    return resolve_config(all_kinds(), context.config_inputs(), launch.world_size,
                          [&](OptionVisitor& visitor) { options.visit(visitor); },
                          {.reads_batches = false,
                           .weights = CommandNeeds::Weights::kRequired,
                           .more_checks = [&](Resolved& run) { return check_chat(run, options); }});
  });
  if (resolved->wants_help) return print_help(context, kChatUsage, *resolved->options);
  run_before_session(context, launch, [&] { check_writing_ranks(*resolved); });
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] {
    const int code = chat(context, session, launch, options);
    session.finish();
    return code;
  });
}

std::vector<CommandOptions> chat_options() { return {options_of<ChatOptions, Config>("chat")}; }

}  // namespace megalith
