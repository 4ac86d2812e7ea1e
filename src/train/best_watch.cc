#include "train/best_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "core/json.h"

namespace megalith {
namespace {

constexpr int64_t kMostIterations = int64_t{1} << 53;  // larger integers are not exact as doubles
constexpr std::string_view kBest = " of iteration ", kLast = " last judged", kInVain = " evaluations in vain";

std::string word_of(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

// Hugging Face's words for the validation set `set` and its figure: "lm_loss", "code_lm_loss" of "validation-code".
std::string word_of(const ShownFigure& figure, std::string_view name) {
  const size_t dash = figure.set.find('-');
  return word_of((dash == std::string::npos ? "" : figure.set.substr(dash + 1) + "_") + std::string(name));
}

std::string without_eval(const std::string& word) { return word.starts_with("eval_") ? word.substr(5) : word; }

// The place of the figure that is asked for: by its word, or as loss if it is a set's main loss; perhaps after
// Hugging Face's eval_, with which a set's name may also begin.
std::optional<size_t> place_of(const std::vector<ShownFigure>& figures, const std::vector<std::string>& words,
                               const std::string& asked) {
  for (const std::string& word : {asked, without_eval(asked)}) {
    const auto found = std::ranges::find(words, word);
    if (found != words.end()) return static_cast<size_t>(found - words.begin());
    for (size_t i = 0; i < figures.size(); ++i) {
      const bool is_main = i == 0 || figures[i].set != figures[i - 1].set;
      if (is_main && word_of(figures[i], "loss") == word) return i;
    }
  }
  return std::nullopt;
}

}  // namespace

size_t BestWatch::choose(const std::vector<ShownFigure>& figures) {
  MEGALITH_CHECK(!figures.empty(), "an evaluation without figures");
  std::vector<std::string> words;
  for (const ShownFigure& figure : figures) words.push_back(word_of(figure, figure.name));
  std::optional<size_t> found = 0;
  if (options_.metric_for_best_model) found = place_of(figures, words, word_of(*options_.metric_for_best_model));
  if (!found) {
    throw UserError(fmt::format("metric_for_best_model is '{}', and an evaluation shows {}",
                                *options_.metric_for_best_model, fmt::join(words, ", ")),
                    "name one of those");
  }
  metric_ = words[*found];
  is_greater_better_ = options_.greater_is_better.value_or(!metric_.ends_with("loss"));
  take(loaded_);
  return *found;
}

void BestWatch::add(int64_t iteration, double value) {
  if (iteration <= last_iteration_) return;
  last_iteration_ = iteration;
  const bool is_finite = std::isfinite(value);
  const bool is_gain =
      is_finite && (best_.empty() || (is_better(value, best_[0].value) &&
                                      std::abs(value - best_[0].value) > options_.early_stopping_threshold));
  num_in_vain_ = is_gain ? 0 : num_in_vain_ + 1;
  if (!is_finite) return;
  // The earlier of equals stays.
  const auto place =
      std::find_if(best_.begin(), best_.end(), [&](const Evaluation& other) { return is_better(value, other.value); });
  best_.insert(place, {iteration, value});
  drop_surplus();
}

void BestWatch::drop_surplus() {
  // One is always known: a gain is measured by it.
  const auto most = static_cast<size_t>(std::max<int64_t>(options_.num_kept(), 1));
  if (best_.size() > most) best_.resize(most);
}

bool BestWatch::keeps(int64_t iteration) const {
  return options_.num_kept() > 0 &&
         std::ranges::any_of(best_, [&](const Evaluation& one) { return one.iteration == iteration; });
}

void BestWatch::save(std::map<std::string, double>& numbers) const {
  if (!is_on() || last_iteration_ < 0) return;
  numbers[fmt::format("{}{}", metric_, kLast)] = static_cast<double>(last_iteration_);
  numbers[fmt::format("{}{}", metric_, kInVain)] = static_cast<double>(num_in_vain_);
  for (const Evaluation& one : best_) numbers[fmt::format("{}{}{}", metric_, kBest, one.iteration)] = one.value;
}

void BestWatch::load(const std::map<std::string, double>& numbers) {
  loaded_ = numbers;
  if (!metric_.empty()) take(loaded_);
}

void BestWatch::take(const std::map<std::string, double>& numbers) {
  best_.clear();
  const auto number = [&](std::string_view name, int64_t otherwise) {
    const auto found = numbers.find(fmt::format("{}{}", metric_, name));
    if (found == numbers.end()) return otherwise;
    return whole_number(found->second, 0, kMostIterations, fmt::format("the checkpoint's '{}'", found->first));
  };
  last_iteration_ = number(kLast, -1);
  num_in_vain_ = number(kInVain, 0);
  const std::string begin = fmt::format("{}{}", metric_, kBest);
  for (const auto& [name, value] : numbers) {
    if (!name.starts_with(begin)) continue;
    const std::string digits = name.substr(begin.size());
    const bool is_number = !digits.empty() && digits.size() < 18 &&
                           std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number || !std::isfinite(value)) {
      throw UserError(fmt::format("the checkpoint's '{}' is {}, expected the figure of an iteration", name, value));
    }
    best_.push_back({std::stoll(digits), value});
  }
  std::ranges::sort(best_, [&](const Evaluation& a, const Evaluation& b) {
    return a.value != b.value ? is_better(a.value, b.value) : a.iteration < b.iteration;
  });
  drop_surplus();
}

}  // namespace megalith
