#include "kinds/text/token_kind.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/collect_errors.h"
#include "core/number_of.h"
#include "data/blend.h"
#include "data/indexed_dataset.h"
#include "data/object_data.h"
#include "data/prepare_input.h"
#include "data/split.h"
#include "hub/hub.h"
#include "kinds/tasks.h"
#include "kinds/text/dpo_reference.h"
#include "kinds/text/instruction_data.h"
#include "kinds/text/sft_paths.h"
#include "kinds/text/sft_set.h"
#include "kinds/text/text_data.h"
#include "kinds/text/text_samples.h"
#include "models/transformer.h"
#include "storage/s3_settings.h"
#include "train/inputs.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLongestDefaultSequence = 4096;
constexpr int64_t kShortestToySequence = 7;

// Texts, or one prefix of token files. Opening reads the whole .idx, which is left to the run if there is one.
void check_data_path(const std::string& path, bool opens) {
  if (is_object_url(path)) {
    Logger log;
    return check_object_data(path, log);
  }
  if (names_texts(path)) {
    (void)find_inputs({path}, /*all_plain=*/false);
    return;
  }
  const std::string prefix = data_prefix(path);
  std::error_code error;
  const bool has_index = fs::exists(prefix + ".idx", error), has_tokens = fs::exists(prefix + ".bin", error);
  if (!has_index && !has_tokens && parse_hub_name(path, HubRepoType::kDataset)) return;
  if (opens || !has_index || !has_tokens) const IndexedDataset opened(path);
}

// The option that gave a split's path, for messages.
const char* listed_option(const DataOptions& options, const char* of_split) {
  return options.per_split_data_args_path ? "per_split_data_args_path" : of_split;
}

void fetch_token_files(Resolved& run, const EnvironmentMap& environment, Logger& log, std::vector<UserError>& errors) {
  const Config& config = run.config;
  DataOptions data = with_listed_paths(config.data);
  bool has_names = false;
  const std::pair<const char*, std::vector<std::string>*> lists[] = {
      {config.data.data_args_path ? "data_args_path" : "data_path", &data.data_path},
      {listed_option(config.data, "train_data_path"), &data.train_data_path},
      {listed_option(config.data, "valid_data_path"), &data.valid_data_path},
      {listed_option(config.data, "test_data_path"), &data.test_data_path},
  };
  for (const auto& [option, values] : lists) {
    for (std::string& value : *values) {
      collect(errors, [&, option = option] {
        const std::string found =
            is_object_url(value)
                ? pull_object_data(value, log)
                : resolve_hub_path(option, value, HubNeed::kTokenData, environment, config.hub, log).string();
        has_names = has_names || found != value;
        value = found;
      });
    }
  }
  // Without any name, list files stay as given.
  if (has_names) run.derived.data = std::move(data);
}

void fetch_instructions(Resolved& run, const EnvironmentMap& environment, Logger& log, std::vector<UserError>& errors) {
  SftOptions& sft = run.derived.data.sft;
  const auto resolve = [&](const char* option, const std::vector<std::string>& paths) {
    return resolve_sft_paths(option, paths, environment, run.config.hub, sft, log);
  };
  // One by one: sets stay apart.
  const auto resolve_each = [&](const char* option, const std::vector<std::string>& paths,
                                std::vector<size_t>& counts) {
    std::vector<std::string> all;
    counts.clear();
    for (const std::string& path : paths) {
      collect(errors, [&] {
        const std::vector<std::string> files = resolve(option, {path});
        counts.push_back(files.size());
        all.insert(all.end(), files.begin(), files.end());
      });
    }
    return all;
  };
  collect(errors, [&] {
    sft.sets = run.config.data.sft.training_sets();
    sft.sft_data_path = resolve_each("sft_data_path", sft.training_paths(), sft.num_set_files);
  });
  sft.sft_valid_data_path = resolve_each("sft_valid_data_path", sft.sft_valid_data_path, sft.num_valid_files);
}

at::Tensor row_of(const std::vector<int64_t>& ids) {
  return at::tensor(at::ArrayRef<int64_t>(ids), at::kLong).unsqueeze(0);
}

}  // namespace

CostShape TokenKind::sample_shape(const Resolved& run) const {
  const int64_t length = run.derived.seq_length;
  return {.b = 1, .s = length, .encoder_s = length};
}

void TokenKind::check_sequence(const Config& config, Derived& d, std::vector<UserError>& errors) const {
  const int64_t longest = config.model.max_position_embeddings;
  d.seq_length = config.train.seq_length.value_or(longest > 0 ? std::min(longest, kLongestDefaultSequence)
                                                              : kLongestDefaultSequence);
  // Relative positions are unbounded.
  const bool is_bounded = config.model.position_embedding() != PositionEmbedding::kRelative;
  if (longest > 0 && is_bounded && d.seq_length > longest) {
    errors.emplace_back(fmt::format("seq_length {} is larger than max_position_embeddings {}", d.seq_length, longest),
                        "lower seq_length or raise max_position_embeddings");
  }
}

void TokenKind::check_sequence_parallel(const Resolved& run, std::vector<UserError>& errors) const {
  const Derived& d = run.derived;
  const int64_t tp = run.config.parallel.tensor_model_parallel_size, cp = run.config.parallel.context_parallel_size;
  const int64_t part = d.seq_length / cp;  // of a context-parallel rank; divisibility is another rule
  if (d.micro_batch_size * part % tp == 0) return;
  const std::string over_cp = cp == 1 ? "" : fmt::format(" / context_parallel_size {}", cp);
  errors.emplace_back(
      fmt::format("sequence_parallel splits the {} tokens of a microbatch (micro_batch_size {} × seq_length {}{}) over "
                  "tensor_model_parallel_size {} ranks, and they do not divide",
                  d.micro_batch_size * part, d.micro_batch_size, d.seq_length, over_cp, tp),
      fmt::format("set seq_length{} or micro_batch_size to a multiple of {}, or leave sequence_parallel out", over_cp,
                  tp));
}

std::unique_ptr<Task> TokenKind::make_task(const Resolved& run) const {
  return megalith::make_task(run.config.task, make_task_setup(run));
}

void TokenKind::check_task(const Resolved& run, std::vector<UserError>& errors) const {
  check_task_rules(run, errors);
  const std::vector<UserError> found = check_dpo(run.config);
  errors.insert(errors.end(), found.begin(), found.end());
}

std::vector<UserError> TokenKind::check_data(Resolved& run) const {
  const Config& config = run.config;
  const bool is_dry = config.train.dry_run;
  if (!config.data.has_paths()) return no_data(run);
  std::vector<UserError> errors;
  for (const auto& paths : {config.data.sft.training_paths(), config.data.sft.sft_valid_data_path}) {
    for (const std::string& text : paths) {
      if (is_prepared_sft(text)) continue;  // opened and its report compared at the start of the run
      const std::string path = parse_sft_path(text).path;
      if (!fs::exists(path) && parse_hub_name(path, HubRepoType::kDataset)) continue;
      collect(errors, [&] { (void)find_inputs({path}, /*all_plain=*/false); });
    }
  }
  if (config.data.split) collect(errors, [&] { parse_split(*config.data.split); });
  collect(errors, [&] {
    const DataOptions data = with_listed_paths(config.data);
    const std::pair<const char*, const std::vector<std::string>*> lists[] = {{"data_path", &data.data_path},
                                                                             {"train_data_path", &data.train_data_path},
                                                                             {"valid_data_path", &data.valid_data_path},
                                                                             {"test_data_path", &data.test_data_path}};
    for (const auto& [option, items] : lists) {
      if (items->empty()) continue;
      collect(errors, [&, option = option, items = items] {
        for (const std::string& prefix : parse_blend(*items, option).prefixes) {
          collect(errors, [&] { check_data_path(prefix, is_dry); });
        }
      });
    }
  });
  append_other_tokenizers(run, errors);
  return errors;
}

void TokenKind::fetch_inputs(Resolved& run, const EnvironmentMap& environment, Logger& log,
                             std::vector<UserError>& errors) const {
  collect(errors, [&] { fetch_token_files(run, environment, log, errors); });
  fetch_instructions(run, environment, log, errors);
}

void TokenKind::prepare_data(Resolved& run, Logger& log) const {
  prepare_texts(run, log);
  prepare_instructions(run, log);
}

int64_t TokenKind::count_sequences(const Resolved& run) const { return count_training_sequences(run); }

std::vector<UserError> TokenKind::check_samples(const Resolved& run) const {
  std::vector<UserError> errors;
  collect(errors, [&] { (void)plan_samples(run); });
  return errors;
}

std::unique_ptr<RunSamples> TokenKind::make_samples(const Resolved& run, at::Device device, bool /*is_shown*/,
                                                    Logger& /*log*/) const {
  return std::make_unique<TextSamples>(run, device);
}

std::unique_ptr<References> TokenKind::make_references(const Resolved& run, const RunModel& model, Logger& log) const {
  if (!run.config.data.sft.has_pairs()) return nullptr;
  return std::make_unique<DpoReferences>(run, model, log);
}

std::string TokenKind::sample_text(const Resolved& run) const {
  return number_of(sample_shape(run).s, "token", "tokens");
}

std::string TokenKind::shape_text(const Resolved& run, const ModelConfig& model) const {
  return fmt::format("hidden {}, ffn {}, {} heads of {} ({} KV), vocabulary {} (padded {})", model.hidden_size,
                     model.ffn_size(), model.num_attention_heads, model.query_head_dim(), model.num_kv_heads(),
                     run.derived.vocab_size, model.padded_vocab_size(run.config.parallel.tensor_model_parallel_size));
}

// The shortest sequence that the ranks can share.
void TokenKind::shrink_sample(const Config& asked, Config& toy) const {
  const int64_t cp = toy.parallel.context_parallel_size, tp = toy.parallel.tensor_model_parallel_size;
  const int64_t unit = cp > 1 ? 2 * cp : 1;
  const int64_t shortest = kShortestToySequence + toy.model.num_prediction_modules();
  int64_t length = div_up(shortest, unit) * unit;
  while (toy.sequence_parallel && toy.train.micro_batch_size * (length / cp) % tp != 0) length += unit;
  toy.train.seq_length = length;
  if (toy.task.decoder_seq_length) toy.task.decoder_seq_length = length;  // as in the check's rows
  toy.model.max_position_embeddings = toy.model.position_embedding() == PositionEmbedding::kLearnedAbsolute
                                          ? length + 3
                                          : std::max(asked.model.max_position_embeddings, length);
}

ModelInput TokenKind::some_input(const ModelConfig& config) const {
  ModelInput input;
  const int64_t length = std::min<int64_t>(config.max_position_embeddings, 32);
  input.context.b = 1;
  input.context.s = length;
  // Spread over the vocabulary, so that a wrong cut anywhere in the embedding is noticed.
  input.tokens = (at::arange(length, at::kLong) * 7919 + 13).remainder(*config.vocab_size).unsqueeze(0);
  input.context.position_ids = at::arange(length, at::kLong).unsqueeze(0);
  input.context.is_training = false;
  return input;
}

std::vector<UserError> TokenKind::check_given(const GivenInput& given) const {
  std::vector<UserError> errors;
  if (given.prompt_ids.empty()) errors.emplace_back("no prompt given", "give token ids: --prompt_ids 1,2,3");
  if (!given.prompt_token_types.empty() && given.prompt_token_types.size() != given.prompt_ids.size()) {
    errors.emplace_back(fmt::format("prompt_token_types has {} numbers, and prompt_ids {}",
                                    given.prompt_token_types.size(), given.prompt_ids.size()),
                        "give one type for each token");
  }
  return errors;
}

ModelInput TokenKind::make_input(const GivenInput& given, const ModelConfig& config, at::Device device) const {
  ModelInput input;
  input.tokens = row_of(given.prompt_ids).to(device);
  if (!given.prompt_token_types.empty()) {
    if (config.token_types() == 0) {
      throw UserError("prompt_token_types is given, and the model has no types of tokens", "leave it away");
    }
    input.more.set(input::kTokenTypes.name, row_of(given.prompt_token_types).to(device));
  }
  input.context.b = 1;
  input.context.s = input.tokens.size(1);
  input.context.position_ids = at::arange(input.context.s, at::TensorOptions(device).dtype(at::kLong)).unsqueeze(0);
  input.context.is_training = false;
  return input;
}

}  // namespace megalith
