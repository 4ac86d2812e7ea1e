// Vocabularies and merges in JSON; see bpe_merges.h and token_model.h.
#include "tokenizer/bpe_merges.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/token_model.h"

namespace megalith {

TokenList read_vocab(const Json& model, std::string_view where) {
  const Json& vocab = get_member(model, "vocab", where);
  if (!vocab.is_object()) throw UserError(fmt::format("{}: \"vocab\" is not an object", where));
  TokenList tokens;
  tokens.reserve(vocab.size());
  std::vector<bool> is_used;
  for (const auto& [token, value] : vocab.items()) {
    // Most are plain numbers; the error's text is formatted only for others.
    const auto number = try_whole_number(value);
    const int64_t id = number ? *number : json_as<int64_t>(value, fmt::format("{}: vocab[\"{}\"]", where, token));
    if (id < 0 || id >= kMaxTokenId) throw UserError(fmt::format("{}: vocab[\"{}\"] has the id {}", where, token, id));
    if (static_cast<size_t>(id) >= is_used.size()) is_used.resize(static_cast<size_t>(id) + 1);
    if (is_used[static_cast<size_t>(id)]) throw UserError(fmt::format("{}: two tokens have the id {}", where, id));
    is_used[static_cast<size_t>(id)] = true;
    tokens.emplace_back(token, static_cast<int32_t>(id));
  }
  return tokens;
}

MergeTable read_merges(const Json& model, const Vocabulary& spelling, size_t prefix_length, std::string_view where) {
  const Json& merges = get_member(model, "merges", where);
  if (!merges.is_array()) throw UserError(fmt::format("{}: \"merges\" is not a list", where));
  MergeTable table(merges.size());
  std::string merged;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Json& merge = merges[rank];
    std::string_view left, right;
    if (merge.is_string()) {
      const std::string_view text = *try_text(merge);
      const size_t blank = text.find(' ');
      if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) {
        throw UserError(fmt::format("{}: merges[{}] is \"{}\", expected two tokens and a blank", where, rank, text));
      }
      left = text.substr(0, blank);
      right = text.substr(blank + 1);
    } else {
      const bool is_pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
      if (!is_pair) throw UserError(fmt::format("{}: merges[{}] is not a pair of tokens", where, rank));
      left = *try_text(merge[0]);
      right = *try_text(merge[1]);
    }
    merged.assign(left);
    merged.append(right.substr(std::min(prefix_length, right.size())));
    const int32_t left_id = spelling.find(left), right_id = spelling.find(right), merged_id = spelling.find(merged);
    if (left_id < 0 || right_id < 0 || merged_id < 0) {
      throw UserError(fmt::format("{}: merges[{}] (\"{}\" and \"{}\") uses or makes a token that is not in \"vocab\"",
                                  where, rank, left, right));
    }
    table.insert(left_id, right_id, {narrow<uint32_t>(rank), merged_id});
  }
  return table;
}

}  // namespace megalith
