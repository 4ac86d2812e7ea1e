// megalith generate: text, or pictures, from a checkpoint or a Hugging Face folder.
#include <cstdio>
#include <numeric>

#include "cli/generate_pictures.h"
#include "cli/help.h"
#include "cli/print.h"
#include "cli/session.h"
#include "cli/within_memory.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "core/time.h"
#include "kinds/kinds.h"
#include "kinds/text/generation.h"
#include "train/inference_memory.h"
#include "train/setup.h"
#include "train/text_tokenizer.h"

namespace megalith {
namespace {

struct GenerateOptions {
  std::optional<std::string> prompt, prompt_file;
  std::vector<int64_t> prompt_ids;
  int64_t max_new_tokens = 100;
  int64_t num_samples = 1;
  bool ignore_eos = false;
  bool print_ids = false;
  PictureOptions pictures;

  void visit(OptionVisitor& v) {
    v.group("Generation");
    v.field("prompt", prompt, "Text to continue, or what a picture shows.");
    v.field("prompt_file", prompt_file, "File with the text to continue.").by_rank(ByRank::kSameContents);
    v.field("prompt_ids", prompt_ids, "Token ids to continue, instead of a text.");
    v.field("max_new_tokens", max_new_tokens, "Most tokens of a continuation.").unit("tokens").at_least(1);
    v.field("num_samples", num_samples, "Number of continuations of the prompt, or of pictures.").at_least(1);
    v.field("ignore_eos", ignore_eos, "Go on behind an end-of-text token.");
    v.field("print_ids", print_ids, "Print the new token ids, one line for each continuation, instead of text.");
    pictures.visit(v);
  }
};

std::vector<int64_t> prompt_of(const GenerateOptions& options, const Tokenizer* tokenizer) {
  const int given = options.prompt.has_value() + options.prompt_file.has_value() + !options.prompt_ids.empty();
  if (given != 1) {
    throw UserError(given == 0 ? "no prompt given" : "several prompts given",
                    "give one of --prompt TEXT, --prompt_file FILE, --prompt_ids 1,2,3");
  }
  if (!options.prompt_ids.empty()) return options.prompt_ids;
  MEGALITH_CHECK(tokenizer != nullptr, "a text prompt without a tokenizer");
  const std::string text = options.prompt ? *options.prompt : read_stream(*options.prompt_file);
  const std::vector<int32_t> ids = tokenizer->encode(text, /*add_special=*/true);
  return {ids.begin(), ids.end()};
}

// Without a seed of its own, sampling takes the run's.
int64_t first_seed(const Resolved& run) {
  const bool has_own = run.options->of(run.config.sampling.sampling_seed).is_set();
  return has_own ? run.config.sampling.sampling_seed : run.config.train.seed;
}

// Every rank goes through the same tokens; the first one shows them.
int generate(CommandContext& context, const Session& session, const GenerateOptions& options, GenerationRequest request,
             const Tokenizer* tokenizer) {
  const Resolved& run = *session.resolved;
  const BuiltModel built = build_model(run, session.groups, session.device);
  load_weights(run, built, session.groups, context.log);
  PipelinedModel model(built.view(), session.groups, session.device);
  const bool is_speaker = session.groups.world->is_first();
  const auto say = [&](std::string_view text) {
    if (!is_speaker) return;
    print_out("{}", text);
    std::fflush(stdout);
  };
  const Stopwatch watch;
  int64_t num_tokens = 0;
  for (int64_t sample = 0; sample < options.num_samples; ++sample) {
    request.sampling.sampling_seed = first_seed(run) + sample;
    if (options.print_ids) {
      const std::vector<int64_t> ids = generate_tokens(model, request, session.device);
      num_tokens += static_cast<int64_t>(ids.size());
      std::string line;
      for (const int64_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
      say(line + "\n");
      continue;
    }
    StreamingDecoder decoder(*tokenizer, /*skip_special=*/true);
    // An encoder reads the prompt, and the decoder answers; a decoder goes on with it.
    if (options.prompt && !built.config().has_encoder()) say(*options.prompt);
    const auto show = [&](int64_t id) {
      say(decoder.push(narrow<int32_t>(id)));
      return true;
    };
    num_tokens += static_cast<int64_t>(generate_tokens(model, request, session.device, show).size());
    say(decoder.finish() + "\n");
    if (sample + 1 < options.num_samples) say("\n");
  }
  context.log.info("{} tokens in {}, {:.1f} tokens/s", num_tokens, format_duration(watch.elapsed_s()),
                   static_cast<double>(num_tokens) / watch.elapsed_s());
  return kExitSuccess;
}

PictureTask picture_task(const Resolved& run, const GenerateOptions& options) {
  const int given = options.prompt.has_value() + options.prompt_file.has_value();
  if (given != 1) {
    throw UserError(given == 0 ? "no prompt given" : "several prompts given",
                    "give one of --prompt TEXT, --prompt_file FILE");
  }
  PictureTask task{.options = options.pictures, .num_samples = options.num_samples};
  task.prompt = options.prompt ? *options.prompt : read_stream(*options.prompt_file);
  task.seed = static_cast<uint64_t>(first_seed(run));
  return task;
}

// Options of one kind of model that are given to the other.
std::vector<UserError> check_for_texts(const Resolved& run) {
  std::vector<UserError> errors;
  for (const char* option :
       {"output", "steps", "guidance", "height", "width"}) {
    if (!run.options->find(option)->is_set()) continue;
    errors.emplace_back(fmt::format("{} is given, and this model writes text", option),
                        "leave it out: it is an option of models of pictures");
  }
  return errors;
}

// What the request is, before anything is allocated for it.
int generate_within_memory(CommandContext& context, const Session& session, const Launch& launch,
                           const GenerateOptions& options) {
  const Resolved& run = *session.resolved;
  if (run.kind().draws_pictures()) return generate_pictures(context, session, launch, picture_task(run, options));
  const std::unique_ptr<Tokenizer> found = run.tokenizer ? nullptr : find_tokenizer(run);
  const Tokenizer* tokenizer = run.tokenizer ? run.tokenizer.get() : found.get();
  if (found) {  // a tokenizer that was named is noted with the configuration
    const auto note = note_of_missing_tokens(*found, run.config, run.derived.vocab_size);
    if (note && session.groups.world->is_first()) context.log.note("{}", *note);
  }
  const bool needs_text = options.prompt_ids.empty() || !options.print_ids;
  if (needs_text && tokenizer == nullptr) {
    throw UserError("text needs a tokenizer, and none was found",
                    "name one with --tokenizer_model, or use --prompt_ids and --print_ids");
  }
  GenerationRequest request;
  request.prompt_ids = prompt_of(options, tokenizer);
  request.max_new_tokens = options.max_new_tokens;
  request.sampling = run.config.sampling;
  if (!options.ignore_eos) request.stop_ids = find_stop_ids(run, tokenizer);
  ModelConfig model = run.config.model;
  model.vocab_size = run.derived.vocab_size;  // a tokenizer may have given it
  check_generation(model, request, "max_new_tokens");
  const MemoryMeasure measure = estimate_generation(std::ssize(request.prompt_ids), request.max_new_tokens);
  return run_within_memory(session, launch, measure, [&](const MemoryEstimate&) {
    return generate(context, session, options, std::move(request), tokenizer);
  });
}

// Replicas of the model would all write the same text. Ranks that hold experts of their own are none, though they see
// the same tokens.
void check_ranks(const Resolved& resolved) {
  const ParallelOptions& parallel = resolved.config.parallel;
  const int64_t tp = parallel.tensor_model_parallel_size, world_size = resolved.derived.world_size;
  const int64_t of_experts = parallel.expert_tensor_parallel_size.value_or(tp) * parallel.expert_model_parallel_size;
  const int64_t model_ranks =
      std::lcm(tp * parallel.context_parallel_size, of_experts) * parallel.pipeline_model_parallel_size;
  if (world_size == model_ranks) return;
  throw UserError(
      fmt::format("{} ranks were started, and the model to generate with lies on {}", world_size, model_ranks),
      fmt::format("start {} rank{}, or spread the model further with tensor_model_parallel_size", model_ranks,
                  model_ranks == 1 ? "" : "s"));
}

}  // namespace

int run_generate(CommandContext& context) {
  const Launch launch = join_launch(context);
  GenerateOptions options;
  const auto check = [&](Resolved& run) {
    if (!run.kind().draws_pictures()) return check_for_texts(run);
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
  run_before_session(context, launch, [&] { check_ranks(*resolved); });
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] {
    const int code = generate_within_memory(context, session, launch, options);
    session.finish();
    return code;
  });
}

std::vector<CommandOptions> generate_options() { return {options_of<GenerateOptions, Config>("generate")}; }

}  // namespace megalith
