#include "core/strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace megalith {
namespace {

// micro-batchSize and micro_batch_size compare equal.
std::string bare(std::string_view name) {
  std::string result;
  for (const char c : lower_case(name)) {
    if (c != '_' && c != '-' && c != ' ') result += c;
  }
  return result;
}

// Most typing errors to forgive; few in short words.
size_t allowed_slips(size_t length) {
  if (length <= 4) return 1;
  if (length <= 8) return 2;
  return length / 4 + 1;
}

std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  // Swaps look two rows back.
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestName = 200;  // no name, and a large table
  if (word.size() > kLongestName) return "";
  const std::string wanted = bare(word);
  std::string best;
  size_t best_distance = allowed_slips(wanted.size()) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(wanted, bare(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string fold_name(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '-', '_');
  return result;
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  while (!(text = trim(text)).empty()) {
    const std::string_view word = text.substr(0, text.find_first_of(" \t\r\n"));
    words.emplace_back(word);
    text.remove_prefix(word.size());
  }
  return words;
}

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  for (const std::string& word : split_words(text)) {
    if (lines.empty() || lines.back().size() + 1 + word.size() > width) {
      lines.push_back(word);
    } else {
      lines.back() += " " + word;
    }
  }
  return lines;
}

std::string format_count(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (value < 0) return "-" + format_count(-value);
  if (value < 999.5) return value == std::floor(value) ? fmt::format("{:.0f}", value) : three_digits(value);
  static constexpr const char* kSuffixes[] = {"k", "M", "B", "T"};
  size_t suffix = 0;
  for (value /= 1000; value >= 999.5 && suffix + 1 < std::size(kSuffixes); value /= 1000) ++suffix;
  return fmt::format("{} {}", three_digits(value), kSuffixes[suffix]);
}

std::string format_bytes(int64_t bytes) {
  if (bytes < 0) return "-" + format_bytes(-bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  static constexpr const char* kSuffixes[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t suffix = 0;
  for (; value >= 1023.5 && suffix + 1 < std::size(kSuffixes); value /= 1024) ++suffix;
  return fmt::format("{} {}", three_digits(value), kSuffixes[suffix]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  if (seconds < 0) return "-" + format_duration(-seconds);
  if (seconds < 9.995) return fmt::format("{:.2f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, 1e15)));
  constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (whole < kMinute) return fmt::format("{} s", whole);
  if (whole < kHour) return fmt::format("{} m {} s", whole / kMinute, whole % kMinute);
  if (whole < kDay) return fmt::format("{} h {} m", whole / kHour, whole % kHour / kMinute);
  return fmt::format("{} d {} h", whole / kDay, whole % kDay / kHour);
}

}  // namespace megalith
