// megalith embed: vectors of texts from a checkpoint or a Hugging Face folder, and nearest neighbours; for vectors of
// blocks see embed_blocks.h.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/embed_blocks.h"
#include "cli/embed_texts.h"
#include "cli/help.h"
#include "cli/print.h"
#include "cli/session.h"
#include "cli/text_reading.h"
#include "cli/vector_files.h"
#include "cli/within_memory.h"
#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/number_of.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "core/time.h"
#include "kinds/encoder/text_vectors.h"
#include "kinds/kinds.h"
#include "train/outputs.h"

namespace megalith {
namespace {

constexpr const char* kUsage =
    "usage: megalith embed --load_hf DIR|--load DIR --text TEXT …|--input FILE [--query TEXT] [--option value ...]\n"
    "       megalith embed --load DIR --blocks --data_path PREFIX [--query TEXT] [--option value ...]";

struct EmbedOptions {
  std::vector<std::string> text, query;
  std::optional<std::string> input, output;
  std::string text_key = "text";
  bool blocks = false;
  VectorOptions vectors;

  void visit(OptionVisitor& v) {
    v.group("Vectors of texts");
    v.field("text", text, "Texts to make vectors of, each in quotes.");
    v.field("input", input,
            "File of texts: one a line, or with the ending .jsonl one JSON object a line, whose text_key is read. - is "
            "standard input.");
    v.field("text_key", text_key, "The key of the text in an object of a .jsonl file.");
    v.field("blocks", blocks,
            "Instead of texts: make vectors of the blocks of data_path, as a biencoder was trained to find them (task "
            "ict).");
    vectors.visit(v);
    v.field("output", output,
            "File for the vectors: .npy (fp32, a row a text) or .jsonl. Default: JSON lines on standard output, where "
            "there is no query. For blocks embedding_path names it too.");
    v.field("query", query,
            "Texts whose nearest among the others are printed, top_k of them, by the cosine of their angle; blocks by "
            "the product with their vectors, as in training.");
  }
};

// Takes `--NAME WORD …` out of the arguments. Each word is one text, including its commas and blanks.
std::vector<std::string> take_texts(std::vector<std::string>& arguments, const std::string& name) {
  std::vector<std::string> texts, rest;
  const std::string option = "--" + name, attached = option + "=";
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(attached)) {
      texts.push_back(arguments[i].substr(attached.size()));
    } else if (arguments[i] == option && i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      while (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) texts.push_back(arguments[++i]);
    } else {
      rest.push_back(arguments[i]);
    }
  }
  arguments = std::move(rest);
  return texts;
}

void check_given(const EmbedOptions& options, std::vector<UserError>& errors) {
  const int given = static_cast<int>(!options.text.empty()) + static_cast<int>(options.input.has_value());
  if (options.blocks && (given > 0 || options.vectors.pooling != PoolingChoice::kOfModel)) {
    errors.emplace_back("blocks is given beside text, input or pooling",
                        "leave these out: blocks come from data_path, and the model says what their vectors are");
  } else if (given != 1 && !options.blocks) {
    errors.emplace_back(given == 0 ? "no texts given" : "texts and a file of texts are both given",
                        "give --text 'a text' 'another' or --input FILE");
  }
}

// For blocks, embedding_path is another name for output.
void check_output(const Resolved& resolved, EmbedOptions& options, std::vector<UserError>& errors) {
  const char* name = "output";
  if (const std::optional<std::string>& path = resolved.config.block_index.embedding_path; options.blocks && path) {
    if (options.output) {
      errors.emplace_back("output and embedding_path are both given", "leave one of them out: both name one file");
      return;
    }
    options.output = path;
    name = "embedding_path";
  }
  if (!options.output) return;
  if (!options.output->ends_with(".npy") && !options.output->ends_with(".jsonl")) {
    errors.emplace_back(fmt::format("{} is '{}'", name, *options.output), "its name must end in .npy or .jsonl");
  } else if (auto error = check_writable(name, *options.output, /*is_folder=*/false)) {
    errors.push_back(std::move(*error));
  } else if (auto taken = check_replaceable(name, *options.output, {}, resolved.config.checkpoint.overwrite)) {
    errors.push_back(std::move(*taken));
  }
}

std::vector<UserError> check_embed(const Resolved& resolved, EmbedOptions& options, TextReading& plan) {
  std::vector<UserError> errors;
  check_given(options, errors);
  check_output(resolved, options, errors);
  const bool is_biencoder = resolved.config.model.is_biencoder();
  std::vector<UserError> of_blocks = check_blocks(resolved, options.blocks);
  errors.insert(errors.end(), of_blocks.begin(), of_blocks.end());
  if (options.blocks || is_biencoder) return errors;
  plan = choose_reading(resolved, options.vectors, errors);
  const bool is_given = resolved.options->of(resolved.config.train.micro_batch_size).is_set();
  plan.settings.rows = is_given ? resolved.derived.micro_batch_size : kVectorRows;
  return errors;
}

std::vector<std::string> read_texts(const EmbedOptions& options) {
  if (!options.input) return options.text;
  const std::string path = *options.input == "-" ? "/dev/stdin" : *options.input;
  const std::string content = read_stream(path);
  const bool is_json = options.input->ends_with(".jsonl");
  std::vector<std::string> texts;
  for (size_t begin = 0, number = 1; begin < content.size(); ++number) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    std::string line = content.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (!is_json) {
      texts.push_back(std::move(line));
      continue;
    }
    if (trim(line).empty()) continue;
    const std::string where = fmt::format("{}:{}", *options.input, number);
    texts.push_back(json_get<std::string>(parse_json(line, where), options.text_key, where));
  }
  if (texts.empty())
    throw UserError(fmt::format("{} has no texts", *options.input), "give a file with one text a line");
  return texts;
}

std::vector<std::string> text_objects(const std::vector<std::string>& texts) {
  std::vector<std::string> objects;
  for (const std::string& text : texts) objects.push_back(dump_json(Json{{"text", text}}));
  return objects;
}

void print_nearest(const EmbedOptions& options, int64_t most, const std::vector<std::string>& texts,
                   const at::Tensor& vectors, const at::Tensor& queries) {
  const std::vector<std::vector<NearRow>> nearest = nearest_rows(unit_rows(queries), unit_rows(vectors), most);
  for (size_t query = 0; query < nearest.size(); ++query) {
    print_out("{}{}\n", query == 0 ? "" : "\n", beginning_of(options.query[query]));
    for (const NearRow& near : nearest[query]) {
      print_out("  {:>7.4f}  {:>6}  {}\n", near.score, near.row + 1,
                beginning_of(texts[static_cast<size_t>(near.row)]));
    }
  }
}

int embed(CommandContext& context, Session& session, const EmbedOptions& options, const TextReading& plan,
          const PipelinePlan& whole, const std::vector<std::string>& texts,
          const std::vector<std::vector<int32_t>>& ids) {
  Resolved& run = *session.resolved;
  const StatesModel model = build_states_model(run, whole, session.groups, session.device);
  load_weights(run, model.built, session.groups, context.log, &model.whole);
  const Stopwatch watch;
  Progress progress(context.log, "embed", std::ssize(ids), "texts");
  const at::Tensor vectors = text_vectors(model.built, ids, plan.settings, session.groups, session.device,
                                          [&](int64_t done) { progress.advance(done); });
  progress.finish();
  if (!session.groups.world->is_first()) return kExitSuccess;
  const int64_t n = std::ssize(texts);
  const at::Tensor of_texts = vectors.narrow(0, 0, n);
  if (options.output) {
    const bool is_npy = options.output->ends_with(".npy");
    const std::string content = is_npy ? npy_text(of_texts) : vector_lines(text_objects(texts), of_texts);
    write_file_atomic(*options.output, content);
  } else if (options.query.empty()) {
    print_out("{}", vector_lines(text_objects(texts), of_texts));
  }
  if (!options.query.empty()) {
    const int64_t most = run.config.sampling.top_k > 0 ? run.config.sampling.top_k : kNearestRows;
    print_nearest(options, most, texts, of_texts, vectors.narrow(0, n, vectors.size(0) - n));
  }
  std::fflush(stdout);
  context.log.info("{} of {} numbers in {}{}", number_of(n, "vector", "vectors"), vectors.size(1),
                   format_duration(watch.elapsed_s()), options.output ? ", written to " + *options.output : "");
  return kExitSuccess;
}

int embed_within_memory(CommandContext& context, Session& session, const Launch& launch, const EmbedOptions& options,
                        const TextReading& plan) {
  Resolved& run = *session.resolved;
  const std::unique_ptr<Tokenizer> found = run.tokenizer ? nullptr : find_tokenizer(run);
  const Tokenizer* tokenizer = run.tokenizer ? run.tokenizer.get() : found.get();
  if (tokenizer == nullptr) {
    throw UserError("text needs a tokenizer, and none was found", "name one with --tokenizer_model");
  }
  if (options.blocks) {
    const BlockRequest request{
        .queries = options.query, .output = options.output, .normalise = options.vectors.normalise.value_or(false)};
    return embed_blocks(context, session, launch, request, *tokenizer);
  }
  const std::vector<std::string> texts = read_texts(options);
  std::vector<std::string> all = texts;
  all.insert(all.end(), options.query.begin(), options.query.end());
  const std::vector<std::vector<int32_t>> ids = ids_of_texts(all, *tokenizer, plan.longest, context.log);
  const auto longest = std::ranges::max_element(ids, {}, [](const auto& one) { return one.size(); });
  const PipelinePlan whole = plan_states(run, plan.settings.pooling == Pooling::kPooler);
  const MemoryMeasure measure = estimate_vectors(std::min(plan.settings.rows, std::ssize(ids)), std::ssize(*longest));
  return run_within_memory(session, launch, measure, [&](const MemoryEstimate&) {
    return embed(context, session, options, plan, whole, texts, ids);
  });
}

}  // namespace

int run_embed(CommandContext& context) {
  const Launch launch = join_launch(context);
  EmbedOptions options;
  TextReading plan;
  std::vector<std::string> texts = take_texts(context.arguments, "text");
  std::vector<std::string> queries = take_texts(context.arguments, "query");
  const auto with_given = [&] {
    if (!texts.empty()) options.text = texts;
    if (!queries.empty()) options.query = queries;
  };
  std::unique_ptr<Resolved> resolved = run_before_session(context, launch, [&] {
    return resolve_config(
        all_kinds(), context.config_inputs(), launch.world_size,
        [&](OptionVisitor& visitor) { options.visit(visitor); },
        {.reads_batches = false, .weights = CommandNeeds::Weights::kRequired, .more_checks = [&](Resolved& run) {
           with_given();
           return check_embed(run, options, plan);
         }});
  });
  if (resolved->wants_help) return print_help(context, kUsage, *resolved->options);
  Session session = start_session(context, std::move(resolved), launch);
  return run_in_session(session, [&] {
    const int code = embed_within_memory(context, session, launch, options, plan);
    session.finish();
    return code;
  });
}

std::vector<CommandOptions> embed_options() { return {options_of<EmbedOptions, Config>("embed")}; }

}  // namespace megalith
