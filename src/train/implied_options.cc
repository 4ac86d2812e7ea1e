#include "train/implied_options.h"

#include <fmt/format.h>

#include "core/number_of.h"
#include "train/device_fit.h"
#include "train/text_tokenizer.h"

namespace megalith {

void name_task_of_model(Resolved& resolved) {
  const std::string word(resolved.kind().default_task());
  if (word.empty()) return;
  resolved.options->of(resolved.config.task.task).offer(WrittenValue::of(word), {OptionLayer::kModel, "model_type"});
}

void name_device_of_file(Resolved& resolved, const std::optional<std::filesystem::path>& file) {
  const auto gpu = resolved.config.train.dry_run && file ? gpu_of_path(file->string()) : std::nullopt;
  if (!gpu) return;
  resolved.options->of(resolved.config.train.dry_run_device)
      .offer(WrittenValue::of(*gpu), {OptionLayer::kModel, "the file's folder"});
}

void prefer_steps_to_epochs(Resolved& resolved) {
  const TrainOptions& train = resolved.config.train;
  if (!train.train_iters || !train.train_epochs) return;
  resolved.notes.push_back(fmt::format("train_epochs {} gives way to train_iters {}", number_text(*train.train_epochs),
                                       *train.train_iters));
  resolved.options->of(train.train_epochs).reset(resolved.options->of(train.train_iters).source());
}

void leave_out_dropout_of_pairs(Resolved& resolved) {
  if (!resolved.config.data.sft.has_pairs()) return;
  const Config& config = resolved.config;
  for (const double* dropout :
       {&config.model.hidden_dropout, &config.model.attention_dropout, &config.lora.dropout}) {
    Option& option = resolved.options->of(*dropout);
    if (*dropout == 0 || option.source().layer > OptionLayer::kModel) continue;
    const std::string loss = "loss " + resolved.options->of(config.data.sft.loss).text();
    resolved.notes.push_back(fmt::format("{}: {} {} of the model is left out; {} 0.1 brings dropout back", loss,
                                         option.name(), number_text(*dropout), option.name()));
    option.assign(WrittenValue::of("0"), {OptionLayer::kModel, loss});
  }
}

void name_tokenizer_of_texts(Resolved& resolved) {
  Derived& d = resolved.derived;
  if (!resolved.kind().reads_texts(resolved.config) || d.tokenizer.is_named()) return;
  d.tokenizer.tokenizer_model = d.checkpoint.load_hf ? d.checkpoint.load_hf : text_tokenizer(resolved);
}

}  // namespace megalith
