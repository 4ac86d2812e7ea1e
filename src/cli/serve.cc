// megalith serve: a model over HTTP, in OpenAI's interface and that of Megatron-LM's text generation server.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "cli/help.h"
#include "cli/print.h"
#include "cli/session.h"
#include "cli/text_ranks.h"
#include "cli/text_reading.h"
#include "cli/within_memory.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/strings.h"
#include "kinds/kinds.h"
#include "kinds/text/model_words.h"
#include "kinds/text/published_sampling.h"
#include "serve/routes.h"
#include "train/inference_memory.h"
#include "train/setup.h"

namespace megalith {
namespace {

constexpr int64_t kUsualContext = 8192;

struct ServeOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::optional<std::string> api_key_file, served_model_name;
  HttpServer::Limits http;
  Scheduler::Limits queue;
  int64_t cached_prompt_tokens = kUsualContext;
  std::optional<int64_t> max_context_tokens;
  VectorOptions vectors;

  void visit(OptionVisitor& v) {
    v.group("Serving");
    v.field("host", host, "Address to listen on; 0.0.0.0 is every one of this machine.");
    v.field("port", port, "Port to listen on; 0 picks a free one.").within(0, 65535);
    v.field("api_key_file", api_key_file, "File with a key that clients must send as Authorization: Bearer KEY.")
        .by_rank(ByRank::kFree);
    v.field("served_model_name", served_model_name,
            "The name that clients give for the model. Default: that of the folder in load_hf or load.");
    v.field("max_batch_rows", queue.max_batch_rows, "Most sequences that are continued together.").within(1, 4096);
    v.field("max_context_tokens", max_context_tokens,
            "Most tokens of a prompt and its answer; memory for max_batch_rows of them must be there. Default: "
            "max_position_embeddings, at most 8192.")
        .unit("tokens")
        .at_least(1);
    v.field("cached_prompt_tokens", cached_prompt_tokens,
            "Most tokens of ended sequences whose keys and values are kept for prompts that begin alike; 0: none.")
        .unit("tokens")
        .at_least(0);
    v.field("max_queued", queue.max_queued, "Most requests that wait for a row; others are answered with 503.")
        .at_least(1);
    v.field("request_timeout", queue.request_timeout_s, "Longest time of a request, waiting included.")
        .unit("seconds")
        .above(0);
    v.field("drain_timeout", queue.drain_s, "Time that running requests have to end after SIGTERM or SIGINT.")
        .unit("seconds")
        .at_least(0);
    v.field("max_body_bytes", http.max_body_bytes, "Largest body of a request.").unit("bytes").at_least(1024);
    v.field("max_header_bytes", http.max_header_bytes, "Largest headers of a request.").unit("bytes").at_least(1024);
    vectors.visit(v);
  }
};

// Encoders give vectors, and so does a model whose pooling is given or whose folder tells it; others give text.
struct ServePlan {
  bool gives_vectors = false;
  TextReading reading;
};

std::vector<UserError> check_serve(const Resolved& run, const ServeOptions& options, ServePlan& plan) {
  std::vector<UserError> errors;
  const ModelConfig& model = run.config.model;
  if (run.kind().draws_pictures()) {
    errors.emplace_back("this model draws pictures, and serve answers with text and vectors",
                        "draw them with megalith generate --prompt TEXT --output FILE.png");
    return errors;
  }
  if (model.is_biencoder()) {
    errors.emplace_back("this model is a biencoder, whose vectors are those of blocks", "use megalith embed --blocks");
    return errors;
  }
  try {
    plan.gives_vectors = !model.is_causal() || options.vectors.pooling != PoolingChoice::kOfModel ||
                         find_sentence_folder(run).has_value();
  } catch (const UserError& error) {
    errors.push_back(error);
  }
  if (plan.gives_vectors) {
    plan.reading = choose_reading(run, options.vectors, errors);
  } else if (!writes_text(model)) {
    errors.emplace_back("this model does not write text, and how it makes vectors is not given",
                        "say what a vector is made of: --pooling last, mean or cls");
  }
  return errors;
}

std::string read_key(const std::string& file) {
  const std::string key(trim(read_stream(file)));
  if (key.empty() || key.find_first_of("\r\n") != std::string::npos) {
    throw UserError(fmt::format("api_key_file {} has no key, or several lines", file), "write one key into it");
  }
  return key;
}

std::string name_of_model(const Resolved& run, const ServeOptions& options) {
  if (options.served_model_name) return *options.served_model_name;
  const CheckpointOptions& checkpoint = run.derived.checkpoint;
  const std::string folder = checkpoint.load.value_or(checkpoint.load_hf.value_or("model"));
  std::error_code error;
  return std::filesystem::weakly_canonical(folder, error).filename().string();
}

ServedModel describe(const Resolved& run, const ServeOptions& options, const ServePlan& plan, const ModelWords& words) {
  ServedModel served{.name = name_of_model(run, options), .config = run.config.model,
                     .tokenizer = &words.require_tokenizer()};
  served.config.vocab_size = run.derived.vocab_size;  // a tokenizer may have given it
  if (words.has_chat()) served.chat = &words.require_chat();
  served.stop_ids = words.text_ends();
  served.chat_stop_ids = words.answer_ends();
  served.sampling = run.config.sampling;
  served.gives_vectors = plan.gives_vectors;
  const bool is_bounded = run.config.model.position_embedding() != PositionEmbedding::kRelative;
  const int64_t bound = is_bounded ? run.config.model.max_position_embeddings : kUsualContext;
  served.max_context_tokens = options.max_context_tokens.value_or(std::min(bound, kUsualContext));
  if (plan.gives_vectors) served.max_context_tokens = plan.reading.longest;
  if (is_bounded && served.max_context_tokens > bound) {
    throw UserError(fmt::format("max_context_tokens {} exceeds max_position_embeddings {}", served.max_context_tokens,
                                bound),
                    fmt::format("lower it to {}", bound));
  }
  return served;
}

// The first rank's side: listens at once, and answers from open() on.
struct Front {
  ServerMetrics metrics;
  Scheduler scheduler;
  HttpServer server;

  Front(const ServedModel& model, const ServeOptions& options, std::string key)
      : scheduler(options.queue, metrics),
        server(options.host, narrow<int>(options.port), options.http,
               make_handler(model, scheduler, metrics, std::move(key)), [this] { scheduler.stop(); }) {}
  ~Front() { scheduler.close(); }

  void open(const ServedModel& model) {
    server.start();
    print_out("serving {} at {}\n", model.name, server.address());
    std::fflush(stdout);
  }
};

int serve_texts(CommandContext& context, const Session& session, const ServeOptions& options,
                const ServedModel& served, Front* front) {
  const Resolved& run = *session.resolved;
  const BuiltModel built = build_model(run, session.groups, session.device);
  load_weights(run, built, session.groups, context.log);
  PipelinedModel model(built.view(), session.groups, session.device);
  TextBatch batch(model,
                  {.most_rows = options.queue.max_batch_rows,
                   .row_multiple = generation_row_multiple(run),
                   .most_past_tokens = options.cached_prompt_tokens},
                  session.device);
  if (front != nullptr) front->open(served);
  run_rounds({.batch = &batch}, *session.groups.world, front == nullptr ? nullptr : &front->scheduler);
  return kExitSuccess;
}

int serve_vectors(CommandContext& context, Session& session, const ServePlan& plan, const PipelinePlan& whole,
                  const ServedModel& served, Front* front) {
  const StatesModel model = build_states_model(*session.resolved, whole, session.groups, session.device);
  load_weights(*session.resolved, model.built, session.groups, context.log, &model.whole);
  const auto make_vectors = [&](const std::vector<std::vector<int32_t>>& texts) {
    return text_vectors(model.built, texts, plan.reading.settings, session.groups, session.device);
  };
  if (front != nullptr) front->open(served);
  run_rounds({.make_vectors = make_vectors}, *session.groups.world, front == nullptr ? nullptr : &front->scheduler);
  return kExitSuccess;
}

int serve(CommandContext& context, Session& session, const Launch& launch, const ServeOptions& options,
          const ServePlan& plan) {
  const Resolved& run = *session.resolved;
  const ModelWords words(run);
  const bool is_first = session.groups.world->is_first();
  if (words.note() && is_first) context.log.note("{}", *words.note());
  ServedModel served = describe(run, options, plan, words);
  if (!plan.gives_vectors) {
    // Requests' defaults are the model's published ones, as in chat.
    const auto note = take_published_sampling(run, served.sampling);
    if (note && is_first) context.log.note("{}", *note);
  }
  std::unique_ptr<Front> front;
  if (is_first) {
    front = std::make_unique<Front>(served, options, options.api_key_file ? read_key(*options.api_key_file) : "");
  }
  if (plan.gives_vectors) {
    const PipelinePlan whole = plan_states(*session.resolved, plan.reading.settings.pooling == Pooling::kPooler);
    const MemoryMeasure measure = estimate_vectors(plan.reading.settings.rows, plan.reading.longest);
    return run_within_memory(session, launch, measure, [&](const MemoryEstimate&) {
      return serve_vectors(context, session, plan, whole, served, front.get());
    });
  }
  const MemoryMeasure measure = estimate_generation(served.max_context_tokens, 0, options.queue.max_batch_rows);
  return run_within_memory(session, launch, measure, [&](const MemoryEstimate&) {
    return serve_texts(context, session, options, served, front.get());
  });
}

}  // namespace

int run_serve(CommandContext& context) {
  const Launch launch = join_launch(context);
  ServeOptions options;
  ServePlan plan;
  std::unique_ptr<Resolved> resolved = run_before_session(context, launch, [&] {
    return resolve_config(all_kinds(), context.config_inputs(), launch.world_size,
                          [&](OptionVisitor& visitor) { options.visit(visitor); },
                          {.reads_batches = false,
                           .weights = CommandNeeds::Weights::kRequired,
                           .more_checks = [&](Resolved& run) { return check_serve(run, options, plan); }});
  });
  if (resolved->wants_help) {
    return print_help(context,
                      "usage: megalith serve --load DIR|--load_hf DIR [--port PORT] [--api_key_file FILE] "
                      "[--option value ...]",
                      *resolved->options);
  }
  if (!plan.gives_vectors) run_before_session(context, launch, [&] { check_writing_ranks(*resolved); });
  std::signal(SIGPIPE, SIG_IGN);
  if (launch.rank > 0) {  // launchers send these to all ranks: the first ends the run for all
    std::signal(SIGTERM, SIG_IGN);
    std::signal(SIGINT, SIG_IGN);
  }
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] {
    const int code = serve(context, session, launch, options, plan);
    session.finish();
    return code;
  });
}

std::vector<CommandOptions> serve_options() { return {options_of<ServeOptions, Config>("serve")}; }

}  // namespace megalith
