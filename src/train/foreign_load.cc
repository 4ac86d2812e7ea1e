#include "train/foreign_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "checkpoint/folder_kind.h"
#include "checkpoint/hf.h"
#include "core/error.h"

namespace megalith {
namespace {

// Another trainer records few of our options, and writes numbers in its own form.
bool is_same_value(const ConfigurationDifference& difference) {
  if (difference.stored.empty() || difference.present.empty()) return true;
  const auto number = [](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    return !text.empty() && *end == '\0' ? std::optional(value) : std::nullopt;
  };
  const std::string stored = plain_text(difference.stored), present = plain_text(difference.present);
  return stored == present || (number(stored) && number(stored) == number(present));
}

}  // namespace

std::optional<ForeignFolder> foreign_load(const Resolved& run) {
  const CheckpointOptions& options = run.derived.checkpoint;
  return options.load ? find_foreign(*options.load, options.ckpt_step) : std::nullopt;
}

std::optional<ForeignFolder> foreign_pretrained(const Resolved& run) {
  const CheckpointOptions& options = run.derived.checkpoint;
  if (!options.pretrained_checkpoint) return std::nullopt;
  const bool has_load = options.load && (kind_of_folder(*options.load) == FolderKind::kCheckpoint || foreign_load(run));
  if (has_load) return std::nullopt;
  return find_foreign(*options.pretrained_checkpoint, std::nullopt);
}

void apply_foreign_architecture(Resolved& resolved, const ForeignFolder& found) {
  const ForeignRecord record = read_foreign_record(found);
  const ModelConfig& model = resolved.config.model;
  if (!record.says_architecture() && model.num_layers > 0 && model.hidden_size > 0) return;
  ModelConfig recorded = foreign_architecture(found, record);
  const OptionSet architecture(recorded);
  std::map<std::string, std::string> values;
  for (const auto& [name, text] : record.options) {
    if (const Option* option = architecture.find(name)) values[option->name()] = plain_text(option->text());
  }
  apply_values(*resolved.options, values, {OptionLayer::kModel, found.folder.string()});
  if (has_tokenizer_files(found.folder)) resolved.derived.text_tokenizer = found.folder.string();
}

StoredCheckpoint open_foreign_load(const ForeignFolder& found, const Resolved& run, bool with_optimizer,
                                   std::vector<std::string>& notes) {
  if (holds_adapters(found) && !run.config.lora.enabled) {
    throw UserError(fmt::format("{} holds adapters, not a model", found.folder.string()),
                    "name the model that they belong to with --load_hf, and leave lora.enabled out");
  }
  if (run.config.lora.enabled && !holds_adapters(found)) {
    throw UserError(fmt::format("lora.enabled: {} ({}) holds a whole model, not adapters", found.folder.string(),
                                name_of(found.kind)),
                    "make it the adapters' base: convert --load DIR --save_hf BASE, and give BASE to --load_hf");
  }
  ModelConfig config = run.config.model;
  config.vocab_size = run.derived.vocab_size;
  return open_foreign(found, config,
                      {.with_optimizer = with_optimizer,
                       .without_optimizer = "no_load_optim",
                       .global_batch_size = run.derived.global_batch_size},
                      notes);
}

std::optional<Resumed> resume_run(const Resolved& run, CheckpointState& state, const Groups& groups, Logger& log) {
  const CheckpointOptions& options = run.derived.checkpoint;
  const bool must_load = options.load && options.exit_on_missing_checkpoint;
  const auto loaded = foreign_load(run), found = loaded || must_load ? loaded : foreign_pretrained(run);
  if (!found) return resume(options, state, groups, log);
  const bool is_finetune = options.finetune || !loaded;
  std::vector<std::string> notes;
  const auto open = [&] {
    return open_foreign_load(*found, run, /*with_optimizer=*/!options.no_load_optim && !is_finetune, notes);
  };
  Resumed resumed = resume_from(found->folder, open, is_finetune, options, state, groups, log);
  std::erase_if(resumed.differences, is_same_value);
  for (const std::string& note : notes) log.note("{}", note);
  return resumed;
}

}  // namespace megalith
