#include "launch/meeting_terms.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/checksum.h"
#include "core/finding.h"
#include "core/strings.h"

namespace megalith {
namespace {

struct KindWords {
  std::string_view noun, missing, remedy;
};

KindWords words_of(TermKind kind) {
  switch (kind) {
    case TermKind::kProgram:
      return {"programs", "unknown", "start the same command of the same build of the program on all machines"};
    case TermKind::kOption:
      return {"options", "no such option", "use one command line and one configuration on all ranks"};
    case TermKind::kVariable:
      return {"environment variables", "not set", "set the variables alike for all ranks, or on none"};
    case TermKind::kData:
      return {"data", "not named", "copy the files to the other machines again, or name one shared folder"};
  }
  return {};
}

constexpr size_t kMostLines = 12, kMostValues = 4, kMostRanges = 3, kLongest = 60, kBefore = 20;

using Values = std::vector<std::pair<std::string, std::vector<int>>>;  // shown value and its ranks, by first rank

std::string ranks_with(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  const std::string all = ranges_text(ranks);
  if (std::count(all.begin(), all.end(), ',') < static_cast<std::ptrdiff_t>(kMostRanges)) return "ranks " + all;
  return fmt::format("rank {} and {} others", ranks[0], ranks.size() - 1);
}

// From just before the first difference.
std::string shortened(const std::string& text, size_t same) {
  if (text.size() <= kLongest) return text;
  const auto is_inside = [&](size_t at) { return at < text.size() && (text[at] & 0xC0) == 0x80; };  // within a UTF-8
                                                                                                    // character
  size_t begin = same > kBefore ? same - kBefore : 0;
  while (is_inside(begin)) ++begin;
  size_t end = std::min(text.size(), begin + kLongest);
  while (is_inside(end)) ++end;
  return (begin > 0 ? "…" : "") + text.substr(begin, end - begin) + (end < text.size() ? "…" : "");
}

std::string line_of(const std::string& name, const Values& values) {
  const std::string& first = values.front().first;
  size_t same = first.size();
  for (const auto& [value, ranks] : values) {
    const auto end = first.begin() + static_cast<std::ptrdiff_t>(std::min({same, first.size(), value.size()}));
    same = static_cast<size_t>(std::mismatch(first.begin(), end, value.begin()).first - first.begin());
  }
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(values.size(), kMostValues); ++i) {
    parts.push_back(fmt::format("{} on {}", shortened(values[i].first, same), ranks_with(values[i].second)));
  }
  if (values.size() > kMostValues) parts.push_back(fmt::format("and {} more values", values.size() - kMostValues));
  return fmt::format("{}: {}", name, join(parts, ", "));
}

}  // namespace

std::string pack_terms(const std::vector<Term>& terms) {
  std::string packed;
  for (const Term& term : terms) {
    packed += static_cast<char>('0' + static_cast<int>(term.kind));
    for (const std::string* text : {&term.name, &term.value, &term.shown}) (packed += *text) += '\0';
  }
  return packed;
}

std::vector<Term> unpack_terms(std::string_view packed) {
  std::vector<Term> terms;
  while (!packed.empty()) {
    const int kind = packed[0] - '0';
    packed.remove_prefix(1);
    Term term;
    for (std::string* text : {&term.name, &term.value, &term.shown}) {
      const size_t end = std::min(packed.find('\0'), packed.size());
      *text = packed.substr(0, end);
      packed.remove_prefix(std::min(end + 1, packed.size()));
    }
    if (kind < 0 || kind > static_cast<int>(TermKind::kData)) continue;
    term.kind = static_cast<TermKind>(kind);
    terms.push_back(std::move(term));
  }
  return terms;
}

std::string digest_of(const std::vector<Term>& terms) {
  std::vector<Term> compared = terms;
  for (Term& term : compared) term.shown.clear();
  return checksum128(pack_terms(compared)).hex();
}

std::string difference_text(const std::vector<std::string>& digests,
                            const std::map<std::string, std::vector<Term>>& terms) {
  // In order of first appearance.
  std::vector<std::pair<TermKind, std::string>> order;
  std::map<std::pair<TermKind, std::string>, std::map<std::string, const Term*>> by_digest;
  std::vector<int> older;
  for (size_t rank = 0; rank < digests.size(); ++rank) {
    if (digests[rank].empty()) older.push_back(static_cast<int>(rank));
    const auto own = terms.find(digests[rank]);
    if (own == terms.end()) continue;
    for (const Term& term : own->second) {
      auto& found = by_digest[{term.kind, term.name}];
      if (found.empty()) order.emplace_back(term.kind, term.name);
      found[digests[rank]] = &term;
    }
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });

  std::vector<TermKind> kinds;
  std::vector<std::string> lines;
  const auto add = [&](TermKind kind, std::string line) {
    if (kinds.empty() || kinds.back() != kind) kinds.push_back(kind);
    lines.push_back(std::move(line));
  };
  if (!older.empty()) {
    add(TermKind::kProgram, fmt::format("program: an older one, which does not compare, on {}", ranks_with(older)));
  }
  for (const auto& key : order) {
    std::map<std::string, size_t> place;  // by compared value
    Values values;
    for (size_t rank = 0; rank < digests.size(); ++rank) {
      if (!terms.contains(digests[rank])) continue;
      const auto& found = by_digest[key];
      const auto own = found.find(digests[rank]);
      const Term* term = own == found.end() ? nullptr : own->second;
      const auto [at, is_new] = place.emplace(term == nullptr ? "" : "=" + term->value, values.size());
      if (is_new) {
        std::string shown(words_of(key.first).missing);
        if (term != nullptr) shown = term->shown.empty() ? term->value : term->shown;
        values.emplace_back(std::move(shown), std::vector<int>());
      }
      values[at->second].second.push_back(static_cast<int>(rank));
    }
    if (values.size() > 1) add(key.first, line_of(key.second, values));
  }
  std::vector<std::string> nouns, remedies;
  for (const TermKind kind : kinds) {
    nouns.emplace_back(words_of(kind).noun);
    remedies.emplace_back(words_of(kind).remedy);
  }
  if (lines.size() > kMostLines) {
    const size_t num_left = lines.size() - kMostLines;
    lines.resize(kMostLines);
    lines.push_back(fmt::format("and {} more", num_left));
  }
  lines.insert(lines.end(), remedies.begin(), remedies.end());
  return fmt::format("the ranks of this run have different {}\n{}", join(nouns, ", "), join(lines, "\n  "));
}

}  // namespace megalith
