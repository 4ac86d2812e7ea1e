// The expressions of moe_layer_freq and its kin; see layer_pattern.h.
#include "models/layer_pattern.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace megalith {
namespace {

// sum := term ('+' term)*    term := factor ('*' factor)*    factor := number | '[' numbers ']' | '(' sum ')'
// Values are numbers or lists; as in Python, lists concatenate under + and repeat under *.
class LayerPattern {
 public:
  LayerPattern(const char* option, const std::string& text) : option_(option), text_(text) {
    for (const char c : text) {
      if (c != ' ' && c != '\'' && c != '"') rest_ += c;
    }
  }

  struct Value {
    bool is_list = false;
    int64_t number = 0;
    std::vector<int64_t> list;
  };

  Value parse() {
    const Value value = sum();
    if (at_ != rest_.size()) refuse();
    return value;
  }

  [[noreturn]] void refuse() const {
    throw UserError(fmt::format("{} '{}' is no layer pattern", option_, text_),
                    "write a number N (every N-th layer), or a list such as [0,1,1] or ([0]*3+[1]*58)");
  }

 private:
  static constexpr size_t kLongest = 1 << 16;

  bool take(char c) {
    if (at_ >= rest_.size() || rest_[at_] != c) return false;
    ++at_;
    return true;
  }
  int64_t number() {
    int64_t value = 0;
    const char* begin = rest_.data() + at_;
    const auto [end, error] = std::from_chars(begin, rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0) refuse();
    at_ += static_cast<size_t>(end - begin);
    return value;
  }
  Value factor() {
    if (take('(')) {
      if (++depth_ > 20) refuse();
      const Value value = sum();
      --depth_;
      if (!take(')')) refuse();
      return value;
    }
    if (!take('[')) return {.number = number()};
    Value value{.is_list = true};
    if (take(']')) return value;
    do {
      value.list.push_back(number());
    } while (take(','));
    if (!take(']')) refuse();
    return value;
  }
  Value term() {
    Value value = factor();
    while (take('*')) {
      const Value other = factor();
      if (value.is_list && other.is_list) refuse();
      if (!value.is_list && !other.is_list) {
        if (other.number != 0 && value.number > static_cast<int64_t>(kLongest) / other.number) refuse();
        value.number *= other.number;
        continue;
      }
      const Value& list = value.is_list ? value : other;
      const int64_t times = value.is_list ? other.number : value.number;
      if (!list.list.empty() && times > static_cast<int64_t>(kLongest / list.list.size())) refuse();
      Value repeated{.is_list = true};
      for (int64_t i = 0; i < times; ++i) repeated.list.insert(repeated.list.end(), list.list.begin(), list.list.end());
      value = std::move(repeated);
    }
    return value;
  }
  Value sum() {
    Value value = term();
    while (take('+')) {
      const Value other = term();
      if (value.is_list != other.is_list) refuse();
      if (value.is_list)
        value.list.insert(value.list.end(), other.list.begin(), other.list.end());
      else
        value.number += other.number;
      if (value.list.size() > kLongest) refuse();
    }
    return value;
  }

  const char* option_;
  const std::string& text_;
  std::string rest_;
  size_t at_ = 0;
  int depth_ = 0;
};

// of_number: the value of layer i for a number N.
std::vector<int64_t> parse_layers(const char* option, const std::string& text, int64_t num_layers,
                                  int64_t (*of_number)(int64_t n, int64_t i), const char* meaning) {
  LayerPattern pattern(option, text);
  const LayerPattern::Value value = pattern.parse();
  std::vector<int64_t> layers = value.list;
  if (!value.is_list) {
    if (value.number < 1) pattern.refuse();
    for (int64_t i = 0; i < num_layers; ++i) layers.push_back(of_number(value.number, i));
  }
  if (std::ssize(layers) != num_layers) {
    throw UserError(
        fmt::format("{} '{}' is for {} layers, and num_layers is {}", option, text, layers.size(), num_layers),
        "give one entry a layer, or a number N for every N-th layer");
  }
  for (const int64_t layer : layers) {
    if (layer != 0 && layer != 1) {
      throw UserError(fmt::format("{} '{}' has the entry {}", option, text, layer), meaning);
    }
  }
  return layers;
}

}  // namespace

std::vector<int64_t> parse_moe_layer_freq(const std::string& text, int64_t num_layers) {
  const auto every_nth = [](int64_t n, int64_t i) -> int64_t { return i % n == 0 ? 1 : 0; };
  return parse_layers("moe_layer_freq", text, num_layers, every_nth, "1 is a layer with experts, 0 one without");
}

std::vector<int64_t> parse_window_attn_skip_freq(const std::string& text, int64_t num_layers) {
  if (text.empty()) return std::vector<int64_t>(static_cast<size_t>(num_layers), 1);
  const auto all_but_every_nth = [](int64_t n, int64_t i) -> int64_t { return (i + 1) % n == 0 ? 0 : 1; };
  return parse_layers("window_attn_skip_freq", text, num_layers, all_but_every_nth,
                      "1 is a layer with the window, 0 one that sees everything");
}

std::string window_attn_skip_freq_text(const std::vector<int64_t>& layers) {
  if (std::find(layers.begin(), layers.end(), 0) == layers.end()) return "";
  return fmt::format("[{}]", fmt::join(layers, ","));
}

std::string moe_layer_freq_text(int64_t num_dense, int64_t num_layers) {
  if (num_dense == 0) return "1";
  return fmt::format("([0]*{}+[1]*{})", num_dense, num_layers - num_dense);
}

std::string normalised_moe_layer_freq(const std::string& text, int64_t num_layers) {
  const std::vector<int64_t> layers = parse_moe_layer_freq(text, num_layers);
  const auto first = std::find(layers.begin(), layers.end(), 1);
  if (first != layers.end() && std::find(first, layers.end(), 0) == layers.end()) {
    return moe_layer_freq_text(first - layers.begin(), num_layers);
  }
  return fmt::format("[{}]", fmt::join(layers, ","));
}

std::vector<int64_t> parse_no_rope_freq(const std::string& text, int64_t num_layers) {
  if (text.empty()) return std::vector<int64_t>(static_cast<size_t>(num_layers), 0);
  const auto every_nth = [](int64_t n, int64_t i) -> int64_t { return (i + 1) % n == 0 ? 1 : 0; };
  return parse_layers("no_rope_freq", text, num_layers, every_nth,
                      "1 is a layer that does not rotate, 0 one that does");
}

std::string no_rope_freq_text(const std::vector<int64_t>& layers) {
  if (std::find(layers.begin(), layers.end(), 1) == layers.end()) return "";
  return fmt::format("[{}]", fmt::join(layers, ","));
}

}  // namespace megalith
