// What vectors of texts and of blocks have in common: from texts to ids, and the nearest vectors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/log.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

// Rows that are printed for a query where nobody says how many.
inline constexpr int64_t kNearestRows = 5;

// The ids of the texts with the tokens that the tokenizer puts around one, cut in front of those that end it to
// `longest`; a note says how many are cut. UserError for a text without tokens.
std::vector<std::vector<int32_t>> ids_of_texts(std::span<const std::string> texts, const Tokenizer& tokenizer,
                                               int64_t longest, Logger& log);

// The first line of a text, and not much of it.
std::string beginning_of(const std::string& text);

// (n, h) -> rows of the length 1
at::Tensor unit_rows(const at::Tensor& rows);

struct NearRow {
  int64_t row = 0;
  double score = 0;
};
// For each row of (q, h), the `most` rows of (n, h) of the largest products with it, best first; all if they are fewer.
std::vector<std::vector<NearRow>> nearest_rows(const at::Tensor& queries, const at::Tensor& vectors, int64_t most);

}  // namespace megalith
