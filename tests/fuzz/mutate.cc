// Damage of three kinds; see mutate.h.
#include "fuzz/mutate.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

namespace megalith::fuzz {
namespace {

using Json = nlohmann::json;

// Whole and not, within the range of integers and far outside.
constexpr double kOddNumbers[] = {1e308, -1e308, -0.5, 0.5, 3.0, 1e19, -1e19, 0x1p53, 0x1p63, -0x1p63, 0x1p64, 1e-300};

constexpr uint64_t kExtremes[] = {0,          1,
                                  0x7f,       0xff,
                                  0x7fff,     0xffff,
                                  INT32_MAX,  uint64_t{1} << 31,
                                  UINT32_MAX, uint64_t{1} << 60,
                                  INT64_MAX,  uint64_t{1} << 63,
                                  UINT64_MAX};

const std::string& any_word(const std::vector<std::string>& words, Random& random) {
  static const std::vector<std::string> kOdd = {"-1",
                                                "0",
                                                "99999999999999999999",
                                                "null",
                                                "[]",
                                                "{}",
                                                "\"\"",
                                                "1e308",
                                                "1e-400",
                                                "\xFF",
                                                "\xED\xA0\x80",
                                                "\xF0\x9F\xA6\x99",
                                                "true",
                                                "(?:(a+)+)+$",
                                                "\\u0000",
                                                "nan",
                                                "2147483648",
                                                "-9223372036854775808"};
  const std::vector<std::string>& from = words.empty() || random() % 4 == 0 ? kOdd : words;
  return from[below(from.size(), random)];
}

// One change most often, four at most: of many, one is sure to make the input useless.
size_t num_changes(Random& random) {
  size_t count = 1;
  while (count < 4 && random() % 3 == 0) ++count;
  return count;
}

std::string nested(size_t depth, Random& random) {
  return random() % 2 == 0 ? std::string(depth, '[') + std::string(depth, ']') : std::string(depth, '{');
}

Json odd_value(const std::vector<std::string>& words, Random& random) {
  switch (random() % 12) {
    case 0:
      return nullptr;
    case 1:
      return static_cast<int64_t>(kExtremes[below(std::size(kExtremes), random)]);
    case 2:
      return kExtremes[below(std::size(kExtremes), random)];
    case 3:
      return -static_cast<int64_t>(random() % 70'000);
    case 4:
      return static_cast<int64_t>(random() % 600);
    case 5:
      return kOddNumbers[below(std::size(kOddNumbers), random)];
    case 6:
      return random() % 2 == 0;
    case 7:
      return Json::array();
    case 8:
      return Json::object();
    case 9:
      return std::string(random() % 400, static_cast<char>('a' + random() % 3));
    case 10:
      return "";
    default:
      return any_word(words, random);
  }
}

void collect(Json& value, std::vector<Json*>& nodes) {
  nodes.push_back(&value);
  if (value.is_structured()) {
    for (auto& item : value) collect(item, nodes);
  }
}

void change_container(Json& node, const std::vector<std::string>& words, Random& random) {
  const size_t size = node.size();
  auto chosen = node.begin();
  std::advance(chosen, static_cast<std::ptrdiff_t>(below(size, random)));
  const auto what = random() % 4;
  if (size > 0 && what == 0) {
    node.erase(chosen);
  } else if (node.is_array()) {
    if (size > 0 && what == 1) {
      const Json copy = *chosen;
      for (size_t times = 1 + random() % 20; times > 0; --times) node.push_back(copy);
    } else if (size > 1 && what == 2) {
      std::swap(*chosen, node[below(size, random)]);
    } else {
      node.push_back(odd_value(words, random));
    }
  } else if (size > 0 && what == 1) {
    Json copy = *chosen;
    node.erase(chosen);
    node[any_word(words, random)] = std::move(copy);
  } else {
    node[any_word(words, random)] = odd_value(words, random);
  }
}

void change_value(Json& node, const std::vector<Json*>& nodes, const std::vector<std::string>& words, Random& random) {
  switch (random() % 6) {
    case 0:
      if (node.is_string()) {
        node = damaged_bytes(node.get<std::string>(), words, random);
        return;
      }
      if (node.is_number() && random() % 2 == 0) {
        node = kOddNumbers[below(std::size(kOddNumbers), random)];
        return;
      }
      if (node.is_number_integer()) {
        node = static_cast<int64_t>(static_cast<uint64_t>(node.get<int64_t>()) + random() % 7 - 3);
        return;
      }
      [[fallthrough]];
    case 1: {
      Json copy = *nodes[below(nodes.size(), random)];
      node = std::move(copy);
      return;
    }
    case 2:
      node = Json::array({node});
      return;
    case 3:
    case 4:
      if (node.is_structured()) {
        change_container(node, words, random);
        return;
      }
      [[fallthrough]];
    default:
      node = odd_value(words, random);
  }
}

}  // namespace

std::string damaged_bytes(std::string text, const std::vector<std::string>& words, Random& random) {
  for (size_t change = num_changes(random); change > 0; --change) {
    const size_t at = below(text.size() + 1, random);
    const size_t rest = text.size() - at, length = std::min<size_t>(1 + random() % 16, rest);
    switch (random() % 11) {
      case 0:
        text.resize(at);
        break;
      case 1:
        if (rest > 0) text[at] = static_cast<char>(random());
        break;
      case 2:
        if (rest > 0) text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
        break;
      case 3:
        text.erase(at, length);
        break;
      case 4:
        text.insert(at, std::string(text, below(text.size() + 1, random), random() % 40));
        break;
      case 5:
        text.insert(at, 1 + random() % 40, static_cast<char>(random()));
        break;
      case 6:
        text.replace(at, length, any_word(words, random));
        break;
      case 7:
        text.insert(at, any_word(words, random));
        break;
      case 8: {
        const uint64_t value = kExtremes[below(std::size(kExtremes), random)];
        std::string bytes(reinterpret_cast<const char*>(&value), sizeof(value));
        const size_t width = std::min(rest, size_t{1} << random() % 4);
        text.replace(at, width, bytes, 0, width);
        break;
      }
      case 9: {  // a number of eight or fewer bytes a little larger or smaller
        uint64_t value = 0;
        const size_t width = std::min(rest, size_t{1} << random() % 4);
        std::memcpy(&value, text.data() + at, width);
        value += random() % 33 - 16;
        std::memcpy(text.data() + at, &value, width);
        break;
      }
      default:
        text.insert(at, nested(random() % 600, random));
    }
  }
  return text;
}

std::string damaged_json(const std::string& text, const std::vector<std::string>& words, Random& random) {
  Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return damaged_bytes(text, words, random);
  for (size_t change = num_changes(random); change > 0; --change) {
    std::vector<Json*> nodes;
    collect(root, nodes);
    // Large tables would be all that is ever hit: half of the time one of the first nodes.
    const size_t among = random() % 2 == 0 ? nodes.size() : std::min<size_t>(nodes.size(), 80);
    change_value(*nodes[below(among, random)], nodes, words, random);
  }
  return root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string damaged_lines(const std::string& text, const std::vector<std::string>& words, Random& random) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  for (size_t change = num_changes(random); change > 0 && !lines.empty(); --change) {
    const size_t at = below(lines.size(), random), other = below(lines.size(), random);
    switch (random() % 5) {
      case 0:
        lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 1: {
        const std::string copy = lines[other];
        lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at), copy);
        break;
      }
      case 2:
        std::swap(lines[at], lines[other]);
        break;
      case 3:
        lines[at] = any_word(words, random);
        break;
      default:
        lines[at] = damaged_bytes(lines[at], words, random);
    }
  }
  std::string result;
  for (const std::string& line : lines) result += line + "\n";
  if (!result.empty()) result.pop_back();
  return result;
}

std::vector<std::string> words_of_json(const std::vector<std::string>& texts) {
  std::set<std::string> words;
  const std::function<void(const Json&)> visit = [&](const Json& value) {
    if (value.is_string() && value.get_ref<const std::string&>().size() < 60) words.insert(value.get<std::string>());
    if (value.is_object()) {
      for (const auto& [key, item] : value.items()) words.insert(key);
    }
    if (value.is_structured()) {
      for (const auto& item : value) visit(item);
    }
  };
  for (const std::string& text : texts) visit(Json::parse(text));
  return {words.begin(), words.end()};
}

}  // namespace megalith::fuzz
