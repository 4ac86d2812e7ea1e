#include "train/run_end.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/strings.h"
#include "core/visible_text.h"
#include "train/tracking.h"

namespace megalith {
namespace {

constexpr size_t kLatestLosses = 20;

std::string row(std::string_view topic, std::string_view text) { return fmt::format("{:<12}{}\n", topic, text); }

std::string loss_text(double loss) { return std::isnan(loss) ? "nan" : fmt::format("{:.4f}", loss); }

std::string quoted(const std::string& text) {
  const bool is_plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+:,=@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return text;
  std::string shown = "'";
  for (const char c : text) shown += c == '\'' ? "'\\''" : std::string(1, c);
  return shown + "'";
}

// Options needed again for an export or adapters; a checkpoint names its tokenizer.
std::string tokenizer_words(const Resolved& resolved) {
  std::string words;
  for (const char* name : {"tokenizer_type", "tokenizer_model", "vocab_file", "merge_file"}) {
    const Option* option = resolved.options->find(name);
    if (option != nullptr && !option->is_default()) words += fmt::format(" --{} {}", name, quoted(option->text()));
  }
  return words;
}

}  // namespace

std::vector<std::string> next_commands(const Resolved& resolved) {
  const CheckpointOptions& checkpoint = resolved.derived.checkpoint;
  const std::optional<std::string>& folder = resolved.config.log.output_dir;
  std::vector<std::string> commands;
  if (folder) commands.push_back("megalith inspect run " + quoted(*folder));
  std::string source, tokenizer = tokenizer_words(resolved);
  if (resolved.config.lora.enabled) {
    if (checkpoint.save_adapter) {
      source = "--adapter " + quoted(*checkpoint.save_adapter);
    } else if (checkpoint.save) {
      source = "--load " + quoted(*checkpoint.save);
    }
    const std::optional<std::string>& base = resolved.config.checkpoint.load_hf;
    if (!source.empty() && base) source = fmt::format("--load_hf {} {}", quoted(*base), source);
    if (!base) source.clear();
  } else if (checkpoint.save) {
    source = "--load " + quoted(*checkpoint.save);
    tokenizer.clear();
  } else if (checkpoint.save_hf) {
    source = "--load_hf " + quoted(*checkpoint.save_hf);
  }
  if (source.empty()) return commands;
  if (resolved.config.model.is_causal()) {
    commands.push_back(fmt::format("megalith generate {}{} --prompt \"…\"", source, tokenizer));
  }
  if (checkpoint.save && !folder) commands.push_back("megalith inspect checkpoint " + quoted(*checkpoint.save));
  return commands;
}

RunEnd::RunEnd(const Resolved& resolved, LineWriter write, SecondsClock clock, std::vector<std::string> era_texts)
    : resolved_(resolved),
      write_(std::move(write)),
      clock_(std::move(clock)),
      era_texts_(std::move(era_texts)),
      begun_at_s_(clock_()) {}

void RunEnd::on_step(const StepRecord& record) {
  averages_.add(record);
  last_ = record;
  ++num_steps_;
  num_skipped_ += record.is_skipped;
  num_tokens_ += record.tokens;
  peak_bytes_ = std::max(peak_bytes_, record.memory_peak_bytes);
  if (record.losses.empty() || record.is_skipped) return;
  latest_losses_.push_back(record.losses.front().second);
  if (latest_losses_.size() > kLatestLosses) latest_losses_.pop_front();
}

void RunEnd::on_validation(const ValidationRecord& record) {
  if (record.losses.empty()) return;
  const double loss = record.losses.front().second;
  auto one = std::find_if(evaluated_.begin(), evaluated_.end(), [&](const auto& it) { return it.first == record.set; });
  if (one == evaluated_.end()) one = evaluated_.insert(one, {record.set, {}});
  Evaluated& set = one->second;
  set.last = loss;
  if (set.count++ == 0 || loss < set.least) {
    set.least = loss;
    set.least_after = record.iteration;
  }
}

std::vector<std::string> RunEnd::losses() const {
  std::vector<std::string> parts;
  if (!latest_losses_.empty()) {
    const double sum = std::accumulate(latest_losses_.begin(), latest_losses_.end(), 0.0);
    const auto count = static_cast<double>(latest_losses_.size());
    parts.push_back(fmt::format("{} in training ({})", loss_text(sum / count),
                                latest_losses_.size() == 1
                                    ? std::string("of the last step")
                                    : fmt::format("mean of the last {} steps", latest_losses_.size())));
  }
  for (const auto& [name, set] : evaluated_) {
    parts.push_back(fmt::format("{} on {}", loss_text(set.last), name));
    if (set.count > 1 && set.least < set.last) {
      parts.back() += fmt::format(" (least {} after step {})", loss_text(set.least), set.least_after);
    }
  }
  return parts;
}

std::string RunEnd::time() const {
  const RunSummary mean = averages_.summary();
  std::string text = fmt::format("{} tokens/s{}, {:.4g} ms a step", format_count(mean.tokens_per_s_per_device),
                                 last_.num_devices > 1 ? " a device" : "", mean.elapsed_ms);
  if (mean.tflops_per_device > 0) text += fmt::format(", {:.3g} TFLOP/s", mean.tflops_per_device);
  if (last_.peak_flops_per_device > 0) {
    text += fmt::format(" (MFU {:.1f} %)", 100 * mean.tflops_per_device * 1e12 / last_.peak_flops_per_device);
  }
  return text + fmt::format("; {} tokens in all", format_count(static_cast<double>(num_tokens_)));
}

void RunEnd::on_end() {
  if (num_steps_ == 0 && evaluated_.empty()) return;
  const CheckpointOptions& checkpoint = resolved_.derived.checkpoint;
  const LogOptions& log = resolved_.config.log;
  std::string text = "\n";
  const bool is_whole = last_.iteration >= last_.train_iters;
  const std::string took = format_duration(clock_() - begun_at_s_);
  text +=
      num_steps_ == 0
          ? row("done", "evaluated in " + took)
          : row(is_whole ? "done" : "stopped",
                fmt::format("{} of {} steps{} in {}", last_.iteration, last_.train_iters,
                            last_.iteration == num_steps_ ? "" : fmt::format(", {} of them in this run", num_steps_),
                            took));
  std::string_view topic = "loss";
  for (const std::string& loss : losses()) text += row(std::exchange(topic, ""), loss);
  topic = "ranks";
  for (const std::string& change : era_texts_) text += row(std::exchange(topic, ""), change);
  if (num_skipped_ > 0) text += row("skipped", fmt::format("{} steps, whose gradients were not finite", num_skipped_));
  if (num_steps_ > 0) text += row("speed", time());
  if (peak_bytes_ > 0) text += row("memory", fmt::format("tensors took {} at most", format_bytes(peak_bytes_)));
  if (log.output_dir) text += row("run folder", *log.output_dir);
  if (checkpoint.save) text += row("checkpoint", *checkpoint.save);
  if (checkpoint.save_hf) text += row("export", *checkpoint.save_hf + "  (Hugging Face's form)");
  if (checkpoint.save_adapter) text += row("adapters", *checkpoint.save_adapter + "  (PEFT's form)");
  if (log.metrics_file) text += row("metrics", *log.metrics_file);
  if (log.loss_plot_file) text += row("plot", *log.loss_plot_file);
  if (log.page_file) text += row("page", *log.page_file);
  if (log.writes_tensorboard()) text += row("TensorBoard", *log.tensorboard_dir);
  const Config& config = resolved_.config;
  if (config.tracking.writes_wandb()) {
    text += row("W&B", fmt::format("{}  (wandb sync uploads it)", (wandb_folder(config) / "latest-run").string()));
  }
  if (config.tracking.writes_mlflow()) text += row("MLflow", mlflow_folder(config).string());
  if (resolved_.config.profile.profile) {
    text += row("traces", resolved_.config.profile.folder(log.tensorboard_dir).string());
  }
  topic = "next";
  for (const std::string& command : next_commands(resolved_)) text += row(std::exchange(topic, ""), command);
  if (!checkpoint.save && !checkpoint.save_hf && !checkpoint.save_adapter && num_steps_ > 0) {
    text += row("weights", "were not saved; --save FOLDER saves them");
  }
  write_(visible_text(text));  // folder names are user input
}

}  // namespace megalith
