#include "metrics/compact_console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "metrics/perplexity.h"

namespace megalith {
namespace {

enum class Tone { kPlain, kStrong, kAlarm };

// "loss 2.8312".
struct LinePart {
  std::string label, value;
  Tone tone = Tone::kPlain;
  int weight = 0;  // the lightest is dropped first; 0: never
  bool has_label_behind = false;

  size_t columns() const { return label.size() + value.size() + (label.empty() || value.empty() ? 0 : 1); }
};

std::string painted(const std::string& text, const char* code, bool has_colour) {
  return has_colour && !text.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

std::string text_of(const LinePart& part, bool has_colour) {
  const std::string label = painted(part.label, "2", has_colour);
  const std::string value = part.tone == Tone::kPlain
                                ? part.value
                                : painted(part.value, part.tone == Tone::kStrong ? "1" : "1;31", has_colour);
  const char* between = part.label.empty() || part.value.empty() ? "" : " ";
  return part.has_label_behind ? value + between + label : label + between + value;
}

size_t columns_of(const std::vector<LinePart>& parts) {
  size_t columns = 0;
  for (const LinePart& part : parts) columns += part.columns() + 2;
  return columns - 2;
}

// By two spaces, without the lightest if they do not fit.
std::string joined(std::vector<LinePart> parts, bool has_colour) {
  while (columns_of(parts) > CompactConsole::kColumns) {
    auto lightest = parts.end();
    for (auto part = parts.begin(); part != parts.end(); ++part) {
      if (part->weight > 0 && (lightest == parts.end() || part->weight <= lightest->weight)) lightest = part;
    }
    if (lightest == parts.end()) break;
    parts.erase(lightest);
  }
  std::string line;
  for (const LinePart& part : parts) line += (line.empty() ? "" : "  ") + text_of(part, has_colour);
  return line + "\n";
}

// In five or six characters.
std::string measured(double value, int decimals) {
  if (std::isnan(value)) return "nan";  // fmt prints a meaningless sign
  const double size = std::fabs(value);
  if (!std::isfinite(value) || (size != 0 && size < 1e-3) || size >= 1e5) return fmt::format("{:.1e}", value);
  // As many digits as below ten; rounding may have added one.
  const size_t columns = static_cast<size_t>(decimals) + (value < 0 ? 3 : 2);
  std::string text = fmt::format("{:.{}f}", value, decimals);
  for (int places = decimals - 1; text.size() > columns && places >= 0; --places) {
    text = fmt::format("{:.{}f}", value, places);
  }
  return text;
}

// Short label of a reward, to keep it in the line; empty for other losses.
std::string_view short_reward(std::string_view loss) {
  constexpr std::pair<std::string_view, std::string_view> kShort[] = {{"chosen reward", "chosen"},
                                                                      {"rejected reward", "rejected"},
                                                                      {"reward margin", "margin"},
                                                                      {"reward accuracy", "acc"},
                                                                      {"kl", "kl"}};
  for (const auto& [name, text] : kShort) {
    if (name == loss) return text;
  }
  return {};
}

// "code" of a data set's "train-code loss"; empty for other losses.
std::string_view set_of_loss(std::string_view loss) {
  constexpr std::string_view kBegin = "train-", kEnd = " loss";
  if (!loss.starts_with(kBegin) || !loss.ends_with(kEnd)) return {};
  loss.remove_prefix(kBegin.size());
  loss.remove_suffix(kEnd.size());
  return loss;
}

std::string step_text(int64_t iteration, int64_t train_iters) {
  const std::string total = fmt::format("{}", train_iters);
  return fmt::format("{:>{}}/{}", iteration, total.size(), total);
}

}  // namespace

bool takes_colour(int descriptor) {
  const char* term = std::getenv("TERM");
  const char* refusal = std::getenv("NO_COLOR");
  return ::isatty(descriptor) == 1 && term != nullptr && std::string_view(term) != "dumb" &&
         (refusal == nullptr || *refusal == '\0');
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  const auto whole = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e12)));
  constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (whole < kMinute) return fmt::format("{}s", whole);
  if (whole < kHour) return fmt::format("{}m{:02}s", whole / kMinute, whole % kMinute);
  if (whole < kDay) return fmt::format("{}h{:02}m", whole / kHour, whole % kHour / kMinute);
  return fmt::format("{}d{:02}h", whole / kDay, whole % kDay / kHour);
}

CompactConsole::CompactConsole(CompactSettings settings, LineWriter write)
    : settings_(std::move(settings)), write_(std::move(write)), time_left_(settings_.train_samples, settings_.clock) {}

void CompactConsole::on_step(const StepRecord& record) {
  train_iters_ = record.train_iters;
  interval_.add(record);
  const std::optional<double> left_s = time_left_.after(record);
  if (!is_line_due(record, settings_.log_interval)) return;

  std::vector<LinePart> parts = {{"step", step_text(record.iteration, record.train_iters)}};
  // If all steps were skipped there is no mean: the last loss shows why.
  const bool is_all_skipped = interval_.num_skipped == interval_.num_steps;
  const auto value_of = [&](const StepInterval::Loss& loss) { return is_all_skipped ? loss.last : loss.mean(); };
  if (!interval_.losses.empty()) {
    const double loss = value_of(interval_.losses[0]);
    parts.push_back({"loss", measured(loss, 4), std::isfinite(loss) ? Tone::kStrong : Tone::kAlarm});
  }
  parts.push_back({"grad", record.grad_norm ? fmt::format("{:>5}", measured(*record.grad_norm, 3)) : "    -"});
  parts.push_back({"lr", fmt::format("{:.2e}", record.learning_rate)});
  if (settings_.shows_throughput) {
    const auto rate = [&](const char* what, double per_s_per_device) {
      parts.push_back({.label = fmt::format("{}/s{}", what, record.num_devices > 1 ? "/dev" : ""),
                       .value = fmt::format("{:>6}", format_count(per_s_per_device)),
                       .weight = 8,
                       .has_label_behind = true});
    };
    if (record.image_size > 0) {
      rate("img", interval_.images_per_s_per_device());
      parts.push_back({.label = "px", .value = fmt::format("{}", record.image_size), .weight = 3,
                       .has_label_behind = true});
    } else {
      rate("tok", interval_.tokens_per_s_per_device());
    }
    if (record.loss_tokens) {
      parts.push_back({.label = "in loss",
                       .value = fmt::format("{:>6}", format_count(interval_.loss_tokens_per_s_per_device())),
                       .weight = 6,
                       .has_label_behind = true});
    }
    if (record.peak_flops_per_device > 0) {
      const double share = interval_.flops_per_s_per_device() / record.peak_flops_per_device;
      parts.push_back({"MFU", fmt::format("{:4.1f} %", 100 * share), Tone::kPlain, 7});
    }
    parts.push_back(
        {.label = "mem", .value = fmt::format("{:>8}", format_bytes(record.memory_used_bytes)), .weight = 5});
  }
  if (left_s) parts.push_back({"left", short_duration(*left_s), Tone::kPlain, 6});
  if (interval_.num_skipped > 0) {
    parts.push_back({"skipped", fmt::format("{}", interval_.num_skipped), Tone::kAlarm});
  }
  if (interval_.num_nan > 0) parts.push_back({"nan", fmt::format("{}", interval_.num_nan), Tone::kAlarm});
  if (record.loss_scale != 1) parts.push_back({"scale", fmt::format("{:g}", record.loss_scale), Tone::kPlain, 4});
  if (record.params_norm) parts.push_back({"params", measured(*record.params_norm, 3), Tone::kPlain, 3});
  if (record.num_zeros) {
    parts.push_back({"zeros", format_count(static_cast<double>(*record.num_zeros)), Tone::kPlain, 2});
  }
  for (size_t i = 1; i < interval_.losses.size(); ++i) {
    const std::string& name = interval_.losses[i].name;
    const double value = value_of(interval_.losses[i]);
    if (!is_shown(name, value)) continue;
    const std::string_view reward = short_reward(name), set = set_of_loss(name);
    const std::string_view label = !reward.empty() ? reward : !set.empty() ? set : name;
    parts.push_back({std::string(label), measured(value, reward.empty() ? 4 : 3), Tone::kPlain,
                     !reward.empty() ? 9 : !set.empty() ? 7 : 1});
  }
  write_(joined(std::move(parts), settings_.has_colour));
  interval_ = {};
}

void CompactConsole::on_validation(const ValidationRecord& record) {
  const int64_t total = train_iters_ > 0 ? train_iters_ : record.iteration;
  std::vector<LinePart> parts = {{"eval", step_text(record.iteration, total)}};
  for (size_t i = 0; i < record.losses.size(); ++i) {
    const auto& [name, value] = record.losses[i];
    const int weight = i == 0 ? 0 : 1;
    const std::string label = i == 0 ? record.set + " loss" : name;
    parts.push_back({label, measured(value, 4), i == 0 ? Tone::kStrong : Tone::kPlain, weight});
    if (i == 0 && has_perplexity(name)) parts.push_back({"perplexity", measured(perplexity(value), 3)});
  }
  write_(joined(std::move(parts), settings_.has_colour));
}

void CompactConsole::on_generation(const GenerationRecord& record) {
  std::string text = fmt::format("text written after step {}:\n    ", record.iteration);
  for (const char c : record.prompt + record.continuation) {
    text += c;
    if (c == '\n') text += "    ";
  }
  write_(text + "\n");
}

void CompactConsole::on_picture(const PictureRecord& record) {
  write_(fmt::format("picture drawn after step {}: {}{}\n", record.iteration, record.prompt,
                     record.file ? ", " + *record.file : ""));
}

}  // namespace megalith
