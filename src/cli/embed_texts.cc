#include "cli/embed_texts.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "core/number_of.h"

namespace megalith {

std::vector<std::vector<int32_t>> ids_of_texts(std::span<const std::string> texts, const Tokenizer& tokenizer,
                                               int64_t longest, Logger& log) {
  std::vector<std::vector<int32_t>> all;
  int64_t num_cut = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<int32_t> ids = tokenizer.encode(texts[i], /*add_special=*/true);
    if (ids.empty()) {
      throw UserError(fmt::format("text {} (counted from 1) has no tokens", i + 1),
                      "leave it out: there is nothing to make a vector of");
    }
    if (std::ssize(ids) > longest) {
      ++num_cut;
      std::vector<int32_t> end;
      while (tokenizer.is_special(ids.back()) && std::ssize(end) + 1 < longest) {
        end.insert(end.begin(), ids.back());
        ids.pop_back();
      }
      ids.resize(static_cast<size_t>(longest) - end.size());
      ids.insert(ids.end(), end.begin(), end.end());
    }
    all.push_back(std::move(ids));
  }
  if (num_cut > 0) {
    log.note("{} longer than {} tokens: what is behind them is not read (seq_length)",
             number_of(num_cut, "text is", "texts are"), longest);
  }
  return all;
}

std::string beginning_of(const std::string& text) {
  constexpr size_t kMost = 96;
  std::string line = text.substr(0, text.find('\n'));
  if (line.size() <= kMost) return line;
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;  // inside a character
  return line.substr(0, end) + "…";
}

at::Tensor unit_rows(const at::Tensor& rows) { return rows / rows.norm(2, 1, /*keepdim=*/true).clamp_min(1e-12); }

std::vector<std::vector<NearRow>> nearest_rows(const at::Tensor& queries, const at::Tensor& vectors, int64_t most) {
  const at::Tensor scores = at::mm(queries, vectors.t());
  const auto [best, rows] = scores.topk(std::min(most, vectors.size(0)), 1);
  std::vector<std::vector<NearRow>> nearest(static_cast<size_t>(queries.size(0)));
  for (int64_t query = 0; query < queries.size(0); ++query) {
    for (int64_t i = 0; i < rows.size(1); ++i) {
      nearest[static_cast<size_t>(query)].push_back(
          {.row = rows[query][i].item<int64_t>(), .score = best[query][i].item<double>()});
    }
  }
  return nearest;
}

}  // namespace megalith
