// Shared by vectors of texts and of blocks: texts to ids, and nearest vectors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/log.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

// Default number of rows printed per query.
inline constexpr int64_t kNearestRows = 5;

// Token ids of the texts with the tokenizer's special tokens, truncated to `longest` before the final ones; a note
// counts the truncated texts. UserError for a text without tokens.
std::vector<std::vector<int32_t>> ids_of_texts(std::span<const std::string> texts, const Tokenizer& tokenizer,
                                               int64_t longest, Logger& log);

// The text's first line, shortened.
std::string beginning_of(const std::string& text);

// (n, h) -> rows of length 1
at::Tensor unit_rows(const at::Tensor& rows);

struct NearRow {
  int64_t row = 0;
  double score = 0;
};
// For each row of (q, h), the `most` rows of (n, h) with the largest dot products, best first; all if there are fewer.
std::vector<std::vector<NearRow>> nearest_rows(const at::Tensor& queries, const at::Tensor& vectors, int64_t most);

}  // namespace megalith
