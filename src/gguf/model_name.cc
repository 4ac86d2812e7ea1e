// As llama.cpp's converter reads names, so that the keys are the same. Source: ggml-org/llama.cpp,
// gguf-py/gguf/metadata.py, utility.py.
#include "gguf/model_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr size_t kLongestName = 255;

enum class Kind { kBasename, kSize, kFinetune, kVersion, kType };

struct Part {
  std::string text;
  std::set<Kind> kinds;
};

bool matches(const std::string& text, const char* expression) {
  return std::regex_match(text, std::regex(expression, std::regex::icase | std::regex::ECMAScript));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// "7b1" is 7.1B, and "8b" 8B. A number far from the model's own is a length of context.
void read_size(Part& part, int64_t num_parameters) {
  std::string& text = part.text;
  std::ranges::replace(text, '_', '.');
  if (is_digit(text.back())) {
    const char unit = text[text.size() - 2], digit = text.back();
    text.resize(text.size() - 2);
    text += fmt::format(".{}{}", digit, unit);
  }
  char& unit = text.back();
  const bool follows_digit = text.size() > 1 && is_digit(text[text.size() - 2]);
  if (follows_digit && std::string_view("kmbt").find(unit) != std::string_view::npos) unit = upper(unit);
  const size_t thousands = std::string_view(" KMBT").find(unit);
  const std::string digits = text.substr(0, text.size() - 1);
  if (thousands != std::string_view::npos && matches(digits, R"(\d+(\.\d+)?)")) {
    const double count = std::stod(digits) * std::pow(1000.0, static_cast<double>(thousands));
    if (std::abs(count - static_cast<double>(num_parameters)) > static_cast<double>(7 * num_parameters / 8)) {
      part.kinds.insert(Kind::kFinetune);
      unit = lower(unit);
    }
  }
  if (part.kinds.empty()) part.kinds.insert(Kind::kSize);
}

std::string join_kind(const std::vector<Part>& parts, const std::function<bool(const Part&)>& is_of, bool once) {
  std::vector<std::string> texts;
  for (const Part& part : parts) {
    if (is_of(part) && !(once && std::ranges::find(texts, part.text) != texts.end())) texts.push_back(part.text);
  }
  return join(texts, "-");
}

// "llama-3" is Llama 3; what has capitals or begins with a number stays.
std::string title(std::string text) {
  std::ranges::replace(text, '-', ' ');
  std::vector<std::string> words = split_words(text);
  for (std::string& word : words) {
    const bool has_capitals = std::ranges::any_of(word, [](char c) { return c >= 'A' && c <= 'Z'; });
    if (has_capitals || std::ranges::none_of(word, is_letter) || matches(word, R"((v\d+(\.\d+)*|\d.*))")) continue;
    bool begins = true;
    for (char& c : word) {
      if (begins) c = upper(c);
      begins = !is_letter(c);
    }
  }
  return join(words, " ");
}

std::string rounded(int64_t count) {
  const auto value = static_cast<double>(count);
  const double scale = value > 1e12 ? 1e-12 : value > 1e9 ? 1e-9 : value > 1e6 ? 1e-6 : 1e-3;
  const char* unit = value > 1e12 ? "T" : value > 1e9 ? "B" : value > 1e6 ? "M" : "K";
  const double scaled = value * scale;
  const auto whole = static_cast<int64_t>(std::nearbyint(scaled));
  const int digits = whole == 0 ? 0 : static_cast<int>(std::to_string(whole).size());
  return fmt::format("{:.{}f}{}", scaled, std::max(2 - digits, 0), unit);
}

Json load_if_there(const fs::path& file) { return fs::exists(file) ? load_json(file) : Json::object(); }

}  // namespace

ModelNameParts parse_model_name(const std::string& id, int64_t num_parameters) {
  if (id.find(' ') != std::string::npos) return {.name = id};
  ModelNameParts result{.name = id};
  if (const size_t slash = id.find('/'); slash != std::string::npos) {
    result.organization = id.substr(0, slash);
    result.name = id.substr(slash + 1);
    if (result.organization.starts_with('.')) result.organization.clear();
  }
  std::vector<Part> parts;
  for (size_t begin = 0; begin <= result.name.size();) {
    const size_t end = std::min(result.name.find('-', begin), result.name.size());
    if (end > begin) parts.push_back({result.name.substr(begin, end - begin), {}});
    begin = end + 1;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    if (matches(part.text, R"((v|iter)?\d+([.]\d+)*)")) {
      part.kinds.insert(Kind::kVersion);
    } else if (matches(part.text, R"(i?q\d(_\w)*|b?fp?(16|32))")) {
      part.kinds.insert(Kind::kType);
      std::ranges::transform(part.text, part.text.begin(), upper);
    } else if (i > 0 && matches(part.text, R"(([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?)")) {
      read_size(part, num_parameters);
    } else if (i > 0 && matches(part.text, "small|mini|medium|large|x?xl")) {
      part.kinds.insert(Kind::kSize);
    } else if (i > 0 && matches(part.text, "chat|instruct|vision|lora")) {
      part.kinds.insert(Kind::kFinetune);
    }
  }
  // Sizes in words do not count beside one in numbers.
  const auto has_digit = [](const Part& part) { return std::ranges::any_of(part.text, is_digit); };
  const auto is_size = [](const Part& part) { return part.kinds.contains(Kind::kSize); };
  if (std::ranges::any_of(parts, [&](const Part& part) { return is_size(part) && has_digit(part); })) {
    for (Part& part : parts) {
      if (std::ranges::all_of(part.text, is_letter)) part.kinds.erase(Kind::kSize);
    }
  }
  // Words and versions in front are the base's name.
  bool is_front = true;
  for (Part& part : parts) {
    const bool is_word = part.kinds.empty() && is_letter(part.text.front());
    is_front = is_front && (is_word || part.kinds.contains(Kind::kVersion));
    if (is_front)
      part.kinds.insert(Kind::kBasename);
    else if (part.kinds.empty())
      part.kinds.insert(Kind::kFinetune);
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (!part->kinds.contains(Kind::kBasename) || part->kinds.size() == 1) break;
    part->kinds.erase(Kind::kBasename);
  }
  const auto of = [&](Kind kind, bool once = false) {
    return join_kind(parts, [=](const Part& part) { return part.kinds.contains(kind); }, once);
  };
  result.size = of(Kind::kSize, true);
  result.finetune = of(Kind::kFinetune);
  result.version = join_kind(
      parts, [](const Part& p) { return p.kinds.contains(Kind::kVersion) && !p.kinds.contains(Kind::kBasename); },
      false);
  const bool is_plain = result.size.empty() && result.finetune.empty() && result.version.empty();
  if (!is_plain) result.basename = of(Kind::kBasename);
  return result;
}

std::string gguf_size_label(const std::vector<GgufTensorInfo>& tensors) {
  int64_t shared = 0, of_expert = 0, experts = 0, stacks = 0;
  for (const GgufTensorInfo& tensor : tensors) {
    if (tensor.name.find("_exps.") == std::string::npos || tensor.shape.size() < 3) {
      shared += tensor.num_elements();
      continue;
    }
    const int64_t count = tensor.shape[tensor.shape.size() - 3];
    of_expert += tensor.num_elements() / count;
    experts += count;
    ++stacks;
  }
  const int64_t count = stacks > 0 ? experts / stacks : 0;
  return count > 0 ? fmt::format("{}x{}", count, rounded(shared + of_expert)) : rounded(shared);
}

void set_gguf_model_name(const std::string& folder_name, const std::optional<fs::path>& source,
                         const std::vector<GgufTensorInfo>& tensors, GgufKeys& keys) {
  int64_t total = 0;
  for (const GgufTensorInfo& tensor : tensors) total += tensor.num_elements();
  keys.set("general.type", "model");
  if (source) {
    constexpr const char* kGeneration = "generation_config.json";
    const Json generation = load_if_there(*source / kGeneration);
    const auto number = [&](const char* key, const char* from) {
      const auto value = json_find<double>(generation, from, kGeneration);
      if (value) keys.set(std::string("general.sampling.") + key, static_cast<float>(*value));
    };
    if (const auto top_k = json_find<int>(generation, "top_k", kGeneration)) keys.set("general.sampling.top_k", *top_k);
    number("top_p", "top_p");
    number("min_p", "min_p");
    number("temp", "temperature");
  }
  ModelNameParts found;
  const auto take = [&](const std::string& id) {
    const ModelNameParts parts = parse_model_name(id, total);
    const auto fill = [](std::string& into, const std::string& from) {
      if (into.empty()) into = from;
    };
    fill(found.name, title(parts.name));
    fill(found.organization, title(parts.organization));
    fill(found.basename, parts.basename);
    fill(found.finetune, parts.finetune);
    fill(found.version, parts.version);
    fill(found.size, parts.size);
  };
  if (source) {
    const auto path = json_find<std::string>(load_if_there(*source / "config.json"), "_name_or_path", "config.json");
    // A hub's name, not a path; std::regex recurses over a text.
    if (path && !path->empty() && path->size() <= kLongestName && std::ranges::count(*path, '/') <= 1) take(*path);
  }
  take(folder_name);
  keys.set("general.name", found.name.empty() ? folder_name : found.name);
  keys.set("general.version", found.version);
  keys.set("general.organization", found.organization);
  keys.set("general.finetune", found.finetune);
  keys.set("general.basename", found.basename);
  keys.set("general.size_label", found.size.empty() ? gguf_size_label(tensors) : found.size);
}

}  // namespace megalith
