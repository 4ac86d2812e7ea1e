#include "cli/embed_blocks.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/embed_texts.h"
#include "cli/print.h"
#include "cli/vector_files.h"
#include "cli/within_memory.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/number_of.h"
#include "core/output_file.h"
#include "core/strings.h"
#include "core/time.h"
#include "data/indexed_dataset.h"
#include "kinds/retrieval/block_vectors.h"
#include "train/inputs.h"
#include "train/outputs.h"

namespace megalith {
namespace {

// One JSON line per block: {"block":7,"document":2,"sentences":[14,18]}.
std::vector<std::string> block_lines(const BlockIndex& index) {
  const at::Tensor places = index.places.contiguous();
  const auto* place = places.const_data_ptr<int64_t>();
  std::vector<std::string> lines;
  for (int64_t block = 0; block < places.size(0); ++block, place += 3) {
    lines.push_back(
        dump_json(OrderedJson{{"block", block}, {"document", place[0]}, {"sentences", {place[1], place[2]}}}));
  }
  return lines;
}

void write_index(const Resolved& run, const BlockRequest& request, const BlockIndex& index) {
  const std::optional<std::string>& places = run.config.block_index.block_data_path;
  const std::optional<std::string>& vectors = request.output;
  const std::vector<std::string> lines = block_lines(index);
  if (places) write_file_atomic(*places, join(lines, "\n") + "\n");
  if (vectors && vectors->ends_with(".npy")) {
    write_file_atomic(*vectors, npy_text(index.vectors));
  } else if (vectors) {
    write_file_atomic(*vectors, vector_lines(lines, index.vectors));
  } else if (!places && request.queries.empty()) {
    print_out("{}", vector_lines(lines, index.vectors));
  }
}

void print_nearest_blocks(const Resolved& run, const BlockRequest& request, const BlockIndex& index,
                          const at::Tensor& questions, BatchSource& blocks, const Tokenizer& tokenizer) {
  const int64_t most = run.config.sampling.top_k > 0 ? run.config.sampling.top_k : kNearestRows;
  const std::vector<std::vector<NearRow>> nearest = nearest_rows(questions, index.vectors, most);
  for (size_t query = 0; query < nearest.size(); ++query) {
    print_out("{}{}\n", query == 0 ? "" : "\n", beginning_of(request.queries[query]));
    for (const NearRow& near : nearest[query]) {
      const std::string text = block_text(blocks, index.samples[near.row].item<int64_t>(), tokenizer);
      print_out("  {:>9.4f}  block {} of document {}  {}\n", near.score, near.row,
                index.places[near.row][0].item<int64_t>(), beginning_of(text));
    }
  }
}

int make_index(CommandContext& context, Session& session, const BlockRequest& request, BatchSource& blocks,
               const std::vector<std::vector<int32_t>>& questions, const Tokenizer& tokenizer) {
  const Resolved& run = *session.resolved;
  const BlockIndexOptions& options = run.config.block_index;
  const BuiltModel built = build_model(run, session.groups, session.device);
  load_weights(run, built, session.groups, context.log);
  const Stopwatch watch;
  constexpr double kNever_s = 1e9;  // lines come per batch; a terminal also has the moving one
  Progress progress(context.log, "embed", blocks.num_samples(), "blocks", {.line_every_s = kNever_s});
  int64_t num_batches = 0;
  BlockIndex index =
      index_blocks(built, blocks, options.indexer_batch_size, session.groups, session.device, [&](int64_t done) {
        progress.advance(done);
        if (++num_batches % options.indexer_log_interval == 0) {
          context.log.info("{}", progress.line());
        }
      });
  progress.finish();
  if (request.normalise) index.vectors = unit_rows(index.vectors);
  if (!session.groups.world->is_first()) return kExitSuccess;
  write_index(run, request, index);
  if (!questions.empty()) {
    at::Tensor vectors = question_vectors(built, questions, session.device);
    if (request.normalise) vectors = unit_rows(vectors);
    print_nearest_blocks(run, request, index, vectors, blocks, tokenizer);
  }
  std::fflush(stdout);
  context.log.info("{} of {} numbers in {}{}", number_of(index.vectors.size(0), "vector", "vectors"),
                   index.vectors.size(1), format_duration(watch.elapsed_s()),
                   request.output ? ", written to " + *request.output : "");
  return kExitSuccess;
}

template <typename Body>
void collect_error(std::vector<UserError>& errors, const Body& body) {
  try {
    body();
  } catch (const UserError& error) {
    errors.push_back(error);
  }
}

void check_files(const Resolved& resolved, std::vector<UserError>& errors) {
  const Config& config = resolved.config;
  if (config.data.data_path.size() != 1) {
    const char* what = config.data.data_path.empty() ? "is not given" : "does not name one data set";
    errors.emplace_back(fmt::format("blocks: data_path {}", what),
                        "give --data_path PREFIX, of files that 'megalith prepare --split_sentences' made");
  } else {
    collect_error(errors, [&] { const IndexedDataset opened(resolved.derived.data.data_path.at(0)); });
  }
  if (config.task.titles_data_path) {
    collect_error(errors, [&] { const IndexedDataset opened(*config.task.titles_data_path); });
  }
  append_other_tokenizers(resolved, errors);
  const std::optional<std::string>& places = config.block_index.block_data_path;
  if (!places) return;
  if (!places->ends_with(".jsonl")) {
    errors.emplace_back(fmt::format("block_data_path is '{}'", *places), "its name must end in .jsonl");
  } else if (auto error = check_writable("block_data_path", *places, /*is_folder=*/false)) {
    errors.push_back(std::move(*error));
  } else if (auto taken = check_replaceable("block_data_path", *places, kBlocksMark, config.checkpoint.overwrite)) {
    errors.push_back(std::move(*taken));
  }
}

}  // namespace

std::vector<UserError> check_blocks(const Resolved& resolved, bool asks_for_blocks) {
  std::vector<UserError> errors;
  const ModelConfig& model = resolved.config.model;
  const bool is_biencoder = model.is_biencoder();
  if (!asks_for_blocks) {
    for (const char* name :
         {"embedding_path", "block_data_path", "indexer_batch_size", "indexer_log_interval", "data_path",
          "titles_data_path", "use_one_sent_docs", "data_cache_path", "allow_other_tokenizer"}) {
      if (!resolved.options->find(name)->is_set()) continue;
      errors.emplace_back(fmt::format("{} is given without blocks", name), "add --blocks, or leave it out");
    }
    if (is_biencoder) {
      errors.emplace_back("a model of two encoders makes vectors of blocks, and no blocks are asked for",
                          "give --blocks and --data_path PREFIX; --query finds the nearest of them");
    }
    return errors;
  }
  if (model.num_layers > 0 && !is_biencoder) {
    errors.emplace_back("blocks: an index is made by a model of two encoders (model_type biencoder); this is another",
                        "name a checkpoint of task ict with --load, or give --text or --input instead of --blocks");
  }
  if (resolved.options->of(resolved.config.train.micro_batch_size).is_set()) {
    errors.emplace_back("blocks: micro_batch_size is given, and blocks are read indexer_batch_size at a time",
                        "give --indexer_batch_size instead");
  }
  check_files(resolved, errors);
  return errors;
}

int embed_blocks(CommandContext& context, Session& session, const Launch& launch, const BlockRequest& request,
                 const Tokenizer& tokenizer) {
  const Resolved& run = *session.resolved;
  const std::unique_ptr<BatchSource> blocks = open_blocks(run, tokenizer, context.log);
  const std::vector<std::vector<int32_t>> questions =
      ids_of_texts(request.queries, tokenizer, run.derived.seq_length, context.log);
  const int64_t rows = std::min(run.config.block_index.indexer_batch_size, blocks->num_samples());
  return run_within_memory(
      session, launch, estimate_block_vectors(rows, run.derived.seq_length),
      [&](const MemoryEstimate&) { return make_index(context, session, request, *blocks, questions, tokenizer); });
}

}  // namespace megalith
