// Unigram language model tokenization: cuts a text into the tokens with the largest sum of log-probabilities.
// Source: Kudo 2018, arXiv:1804.10959; order of comparisons as in SentencePiece and Hugging Face's `tokenizers`.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "tokenizer/byte_trie.h"
#include "tokenizer/utf8.h"

namespace megalith {

// One token of the best path: text[begin, end), with its value in the trie, or -1 for an unknown character.
struct UnigramStep {
  size_t begin = 0, end = 0;
  int32_t value = -1;
};

// score(value, length in bytes) is a token's log-probability. Sums have type Sum: float as in SentencePiece, double as
// in `tokenizers`, which decides between nearly equal cuts. The first of equal sums wins.
//
// largest  if a sum's absolute value exceeds this, sums restart from 0 there: SentencePiece's way to keep float
//          precision in long texts
template <typename Sum, typename Score>
std::vector<UnigramStep> unigram_path(std::string_view text, const ByteTrie& trie, Sum unknown_score, Score&& score,
                                      Sum largest = std::numeric_limits<Sum>::infinity()) {
  struct Node {
    Sum sum = 0;
    int32_t value = -1;
    uint32_t begin = UINT32_MAX;
  };
  constexpr size_t kMost = size_t{1} << 26;
  if (text.size() > kMost) {
    throw UserError(fmt::format("{} bytes follow one another without a place to cut, and {} at most are searched: each "
                                "takes 40 bytes of memory",
                                text.size(), kMost),
                    "divide the text");
  }
  const auto size = narrow<uint32_t>(text.size());
  std::vector<Node> best(text.size() + 1);
  uint32_t reached = 0;
  for (uint32_t begin = 0; begin < size;) {
    if (std::abs(best[begin].sum) > largest) {
      const Sum offset = best[begin].sum;
      for (uint32_t i = begin; i <= reached; ++i) best[i].sum -= offset;
    }
    const Sum sum = best[begin].sum;
    const auto character = std::min<uint32_t>(static_cast<uint32_t>(utf8_length(text[begin])), size - begin);
    bool has_character = false;
    uint32_t node = ByteTrie::kRoot;
    for (uint32_t end = begin; end < size;) {
      const auto [next, value] = trie.step(node, static_cast<uint8_t>(text[end]));
      if (next == ByteTrie::kNone) break;
      node = next;
      ++end;
      if (value < 0) continue;
      const Sum candidate = static_cast<Sum>(score(value, end - begin)) + sum;
      Node& target = best[end];
      if (target.begin == UINT32_MAX || candidate > target.sum) {
        target = {candidate, value, begin};
        reached = std::max(reached, end);
      }
      has_character = has_character || end - begin == character;
    }
    if (!has_character) {
      Node& target = best[begin + character];
      const Sum candidate = unknown_score + sum;
      if (target.begin == UINT32_MAX || candidate > target.sum) target = {candidate, -1, begin};
      reached = std::max(reached, begin + character);
    }
    begin += character;
  }
  std::vector<UnigramStep> path;
  for (size_t end = text.size(); end > 0; end = path.back().begin) {
    path.push_back({best[end].begin, end, best[end].value});
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace megalith
