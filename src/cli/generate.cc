// megalith generate: text, or pictures, from a checkpoint or a Hugging Face folder.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "cli/generate_pictures.h"
#include "cli/generate_rows.h"
#include "cli/help.h"
#include "cli/print.h"
#include "cli/session.h"
#include "cli/text_ranks.h"
#include "cli/within_memory.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "core/time.h"
#include "kinds/kinds.h"
#include "kinds/text/generation.h"
#include "kinds/text/model_words.h"
#include "train/inference_memory.h"
#include "train/outputs.h"
#include "train/setup.h"

namespace megalith {
namespace {

struct GenerateOptions {
  std::optional<std::string> prompt, prompt_file, messages, input;
  std::vector<int64_t> prompt_ids;
  std::vector<std::string> stop;
  int64_t max_new_tokens = 100;
  int64_t num_samples = 1;
  int64_t batch_rows = 8;
  bool ignore_eos = false;
  bool print_ids = false;
  PictureOptions pictures;

  void visit(OptionVisitor& v) {
    v.group("Generation");
    v.field("prompt", prompt, "Text to continue, or what a picture shows.");
    v.field("prompt_file", prompt_file, "File with the text to continue.").by_rank(ByRank::kSameContents);
    v.field("prompt_ids", prompt_ids, "Token ids to continue, instead of a text.");
    v.field("messages", messages,
            "File with a conversation to answer by the model's chat template: a JSON list of messages, or an object "
            "with messages and tools. - is standard input.")
        .by_rank(ByRank::kSameContents);
    v.field("input", input,
            "File of prompts to answer, a JSON object a line with prompt, prompt_ids or messages; the other keys are "
            "handed on. The answers are JSON lines, in output or on standard output.")
        .by_rank(ByRank::kSameContents);
    v.field("batch_rows", batch_rows, "Most rows of input that are answered together.").within(1, 4096);
    v.field("stop", stop, "Texts that end a continuation and are no part of it.");
    v.field("max_new_tokens", max_new_tokens, "Most tokens of a continuation.").unit("tokens").at_least(1);
    v.field("num_samples", num_samples, "Number of continuations of the prompt, or of pictures.").at_least(1);
    v.field("ignore_eos", ignore_eos, "Go on after an end-of-text token.");
    v.field("print_ids", print_ids, "Print the new token ids, one line for each continuation, instead of text.");
    pictures.visit(v);
  }
};

constexpr const char* kPrompts =
    "give one of --prompt TEXT, --prompt_file FILE, --prompt_ids 1,2,3, --messages FILE, --input FILE";

std::vector<int64_t> prompt_of(const GenerateOptions& options, const ModelWords& words) {
  if (!options.prompt_ids.empty()) return options.prompt_ids;
  if (options.messages) {
    const Conversation conversation = read_conversation(*options.messages);
    return words.require_chat().prompt_ids(conversation.messages, conversation.tools);
  }
  const std::string text = options.prompt ? *options.prompt : read_stream(*options.prompt_file);
  const std::vector<int32_t> ids = words.require_tokenizer().encode(text, /*add_special=*/true);
  return {ids.begin(), ids.end()};
}

// The sampling seed; without one, the run's.
int64_t first_seed(const Resolved& run) {
  const bool has_own = run.options->of(run.config.sampling.sampling_seed).is_set();
  return has_own ? run.config.sampling.sampling_seed : run.config.train.seed;
}

// A request for text, checked before anything is allocated.
struct TextTask {
  GenerationRequest request;       // without input
  std::vector<PromptRow> rows;     // from input
  int64_t longest_prompt = 0;

  int64_t rows_together(const GenerateOptions& options) const {
    return std::clamp<int64_t>(std::ssize(rows), 1, options.batch_rows);
  }
};

// Every rank decodes the same tokens; the first one prints them.
int64_t write_samples(PipelinedModel& model, const Session& session, const GenerateOptions& options,
                      GenerationRequest request, const ModelWords& words) {
  const Resolved& run = *session.resolved;
  const int64_t multiple = generation_row_multiple(run);
  const bool is_speaker = session.groups.world->is_first();
  const auto say = [&](std::string_view text) {
    if (!is_speaker) return;
    print_out("{}", text);
    std::fflush(stdout);
  };
  int64_t num_tokens = 0;
  for (int64_t sample = 0; sample < options.num_samples; ++sample) {
    request.sampling.sampling_seed = first_seed(run) + sample;
    if (options.print_ids) {
      const std::vector<int64_t> ids = generate_tokens(model, request, multiple, session.device);
      num_tokens += std::ssize(ids);
      say(fmt::format("{}\n", fmt::join(ids, " ")));
      continue;
    }
    // An encoder-decoder answers the prompt, a decoder continues it.
    if (options.prompt && !model.config().has_encoder()) say(*options.prompt);
    AnswerText text(words.require_tokenizer(), options.stop, text_before(model.config(), request));
    const auto show = [&](int64_t id) {
      say(text.push(id));
      return !text.is_stopped();
    };
    num_tokens += std::ssize(generate_tokens(model, request, multiple, session.device, show));
    say(text.finish() + "\n");
    if (sample + 1 < options.num_samples) say("\n");
  }
  return num_tokens;
}

int generate(CommandContext& context, const Session& session, const GenerateOptions& options, const TextTask& task,
             const ModelWords& words) {
  const Resolved& run = *session.resolved;
  const BuiltModel built = build_model(run, session.groups, session.device);
  load_weights(run, built, session.groups, context.log);
  PipelinedModel model(built.view(), session.groups, session.device);
  const Stopwatch watch;
  int64_t num_tokens = 0;
  if (options.input) {
    TextBatch batch(model, {.most_rows = task.rows_together(options), .row_multiple = generation_row_multiple(run)},
                    session.device);
    num_tokens = answer_rows(batch, task.rows, words, options.stop, options.pictures.output,
                             session.groups.world->is_first(), context.log);
  } else {
    num_tokens = write_samples(model, session, options, task.request, words);
  }
  context.log.info("{} tokens in {}, {:.1f} tokens/s", num_tokens, format_duration(watch.elapsed_s()),
                   static_cast<double>(num_tokens) / watch.elapsed_s());
  return kExitSuccess;
}

PictureTask picture_task(const Resolved& run, const GenerateOptions& options) {
  const int given = options.prompt.has_value() + options.prompt_file.has_value();
  if (options.messages || options.input || !options.prompt_ids.empty() || !options.stop.empty()) {
    throw UserError("a model of pictures draws what a text says", "give only --prompt TEXT or --prompt_file FILE");
  }
  if (given != 1) {
    throw UserError(given == 0 ? "no prompt given" : "several prompts given",
                    "give one of --prompt TEXT, --prompt_file FILE");
  }
  PictureTask task{.options = options.pictures, .num_samples = options.num_samples};
  task.prompt = options.prompt ? *options.prompt : read_stream(*options.prompt_file);
  task.seed = static_cast<uint64_t>(first_seed(run));
  return task;
}

// Refuses options of another kind of model or another form of prompt.
std::vector<UserError> check_for_texts(const Resolved& run, const GenerateOptions& options) {
  std::vector<UserError> errors;
  for (const char* option : {"output", "steps", "guidance", "height", "width"}) {
    if (!run.options->find(option)->is_set() || (option == std::string_view("output") && options.input)) continue;
    errors.emplace_back(fmt::format("{} is given, and this model writes text", option),
                        option == std::string_view("output") ? "leave it out: only the answers to --input go to a file"
                                                             : "leave it out: it is an option of models of pictures");
  }
  const int given = options.prompt.has_value() + options.prompt_file.has_value() + !options.prompt_ids.empty() +
                    options.messages.has_value() + options.input.has_value();
  if (given != 1) errors.emplace_back(given == 0 ? "no prompt given" : "several prompts given", kPrompts);
  if (options.input && options.num_samples > 1) {
    errors.emplace_back("num_samples is for one prompt, and input has many", "repeat the rows that need several answers");
  }
  if (options.input && options.print_ids) {
    errors.emplace_back("print_ids is for one prompt", "leave it out: rows of input have their answers as text");
  }
  if (!options.input && run.options->of(options.batch_rows).is_set()) {
    errors.emplace_back("batch_rows is given without input", "leave it out, or give --input FILE");
  }
  if (options.print_ids && !options.stop.empty()) {
    errors.emplace_back("stop is a text, and print_ids shows ids", "leave one of them out");
  }
  if (auto error = check_stop_texts(options.stop)) errors.push_back(std::move(*error));
  if (options.input && options.pictures.output) {
    if (auto error = check_writable("output", *options.pictures.output, /*is_folder=*/false)) errors.push_back(*error);
    if (auto taken = check_replaceable("output", *options.pictures.output, {}, run.config.checkpoint.overwrite)) {
      errors.push_back(*taken);
    }
  }
  return errors;
}

TextTask text_task(const Resolved& run, const GenerateOptions& options, const ModelWords& words) {
  if (!options.input && (options.prompt_ids.empty() || !options.print_ids)) words.require_tokenizer();
  ModelConfig model = run.config.model;
  model.vocab_size = run.derived.vocab_size;  // a tokenizer may have given it
  GenerationRequest usual{.max_new_tokens = options.max_new_tokens, .sampling = run.config.sampling};
  usual.sampling.sampling_seed = first_seed(run);
  if (!options.ignore_eos) usual.stop_ids = options.messages ? words.answer_ends() : words.text_ends();
  TextTask task{.request = usual};
  if (options.input) {
    task.rows = read_prompt_rows(*options.input, words, usual, model);
    for (const PromptRow& row : task.rows) {
      task.longest_prompt = std::max(task.longest_prompt, std::ssize(row.request.prompt_ids));
    }
    return task;
  }
  task.request.prompt_ids = prompt_of(options, words);
  check_generation(model, task.request, "max_new_tokens");
  task.longest_prompt = std::ssize(task.request.prompt_ids);
  return task;
}

int generate_within_memory(CommandContext& context, const Session& session, const Launch& launch,
                           const GenerateOptions& options) {
  const Resolved& run = *session.resolved;
  if (run.kind().draws_pictures()) return generate_pictures(context, session, launch, picture_task(run, options));
  const ModelWords words(run);
  if (words.note() && session.groups.world->is_first()) context.log.note("{}", *words.note());
  const TextTask task = text_task(run, options, words);
  const MemoryMeasure measure =
      estimate_generation(task.longest_prompt, options.max_new_tokens, task.rows_together(options));
  return run_within_memory(session, launch, measure, [&](const MemoryEstimate&) {
    return generate(context, session, options, task, words);
  });
}

}  // namespace

int run_generate(CommandContext& context) {
  const Launch launch = join_launch(context);
  GenerateOptions options;
  const auto check = [&](Resolved& run) {
    if (!run.kind().draws_pictures()) return check_for_texts(run, options);
    return check_picture_task(run, picture_task(run, options));
  };
  std::unique_ptr<Resolved> resolved = run_before_session(context, launch, [&] {
    return resolve_config(all_kinds(), context.config_inputs(), launch.world_size,
                          [&](OptionVisitor& visitor) { options.visit(visitor); },
                          {.reads_batches = false, .weights = CommandNeeds::Weights::kRequired, .more_checks = check});
  });
  if (resolved->wants_help) {
    return print_help(context,
                      "usage: megalith generate --load DIR|--load_hf DIR --prompt TEXT [--output FILE.png] "
                      "[--option value ...]",
                      *resolved->options);
  }
  run_before_session(context, launch, [&] { check_writing_ranks(*resolved); });
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] {
    const int code = generate_within_memory(context, session, launch, options);
    session.finish();
    return code;
  });
}

std::vector<CommandOptions> generate_options() { return {options_of<GenerateOptions, Config>("generate")}; }

}  // namespace megalith
