#include "kinds/text/instruction_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/checksum.h"
#include "core/collect_errors.h"
#include "core/error.h"
#include "core/file.h"
#include "data/builder_lock.h"
#include "kinds/text/sft_batches.h"
#include "kinds/text/sft_paths.h"
#include "kinds/text/sft_set.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// A prefix of prepared files, whose report is told.
std::string taken_up(const std::string& prefix, const SftEncoder& encoder, Logger& log) {
  log.info("{}", describe(check_prepared_sft(prefix, encoder)));
  return prefix;
}

// The prefix of these rows' token files, made if missing.
std::string tokens_of_rows(const std::vector<std::string>& paths, const SftEncoder& encoder, const Resolved& resolved,
                           Logger& log) {
  const DataOptions& data = resolved.config.data;
  if (std::any_of(paths.begin(), paths.end(), is_prepared_sft)) {
    if (paths.size() > 1) {
      throw UserError(fmt::format("{} paths of instructions, and some name files of prepare --sft", paths.size()),
                      "prepare all rows together, and name one prefix");
    }
    return taken_up(data_prefix(paths[0]), encoder, log);
  }
  SftReader reader(paths, data.sft.sft_dataset_split, data.sft.sft_column, data.sft.sft_deduplicate);
  std::string job = encoder.identity() + reader.parts();
  for (const PrepareInput& input : reader.inputs()) {
    job +=
        fmt::format("\n{} {} {}", fs::absolute(input.path).lexically_normal().string(), input.bytes, input.modified_ns);
  }
  const fs::path first = fs::absolute(parse_sft_path(paths[0]).path).lexically_normal();
  const fs::path folder = data.data_cache_path ? fs::path(*data.data_cache_path) : fs::path(first.string() + ".tokens");
  const std::string name = fmt::format("{}-sft-{:016x}", first.filename().string(), checksum64(job));
  const std::string prefix = (folder / name).string();
  const auto is_made = [&] { return fs::exists(prefix + ".json"); };
  if (is_made()) return taken_up(prefix, encoder, log);
  make_directories(folder);
  const BuilderLock lock(folder / (name + ".lock"),
                         [&] { log.info("another process makes tokens of {}; waiting for it", paths[0]); });
  if (is_made()) return taken_up(prefix, encoder, log);
  log.info("making tokens of the rows of {} once, in {}", paths[0], prefix);
  for (const std::string& line : reader.skipped()) log.note("{}", line);
  const SftReport report = prepare_sft(reader, encoder, data.sft, resolved.tokenizer->vocab_size(), prefix, log);
  log.info("{}", describe(report));
  return prefix;
}

}  // namespace

void prepare_instructions(Resolved& resolved, Logger& log) {
  SftOptions& sft = resolved.derived.data.sft;
  if (!sft.has_paths()) return;
  if (resolved.tokenizer == nullptr) {
    throw UserError("sft_data_path is given, and no tokenizer is named",
                    "load a published model with --load_hf, which brings its tokenizer, or give --tokenizer_model");
  }
  const SftEncoder encoder(*resolved.tokenizer, resolved.derived.tokenizer.tokenizer_model.value_or(""), sft);
  std::vector<UserError> errors;
  const auto prepare = [&](std::vector<std::string>& paths, const std::vector<size_t>& num_files, bool is_apart) {
    if (paths.empty()) return;
    std::vector<std::vector<std::string>> sets;
    auto next = paths.begin();
    for (const size_t count : is_apart ? num_files : std::vector<size_t>{paths.size()}) {
      const auto begin = next;
      next += static_cast<std::ptrdiff_t>(count);
      sets.emplace_back(begin, next);
    }
    std::vector<std::string> prefixes;
    for (const auto& set : sets) {
      collect(errors, [&] { prefixes.push_back(tokens_of_rows(set, encoder, resolved, log)); });
    }
    paths = std::move(prefixes);
  };
  prepare(sft.sft_data_path, sft.num_set_files, !sft.sets.empty());
  prepare(sft.sft_valid_data_path, sft.num_valid_files, !validation_sets(resolved.config.data).empty());
  throw_if_any(errors);
}

int64_t count_training_sequences(const Resolved& resolved) {
  return count_sft_sequences(resolved.derived.data, resolved.derived.seq_length);
}

}  // namespace megalith
