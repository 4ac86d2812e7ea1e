#include "tokenizer/pipeline_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

constexpr size_t kRunIds = size_t{1} << 16;
constexpr size_t kLongPart = size_t{1} << 20;  // bytes; longer texts are normalised and encoded in parts if possible

// The start of the first character at or after `from` that every local normalizer keeps as one and no Unicode form
// joins with the text before it: printable ASCII, or an ideograph of U+5000 to U+8FFF.
size_t find_steady(std::string_view text, size_t from) {
  const auto is_steady = [](char c) {
    const auto byte = static_cast<uint8_t>(c);
    return (byte >= 0x20 && byte < 0x7F) || (byte >= 0xE5 && byte <= 0xE8);
  };
  while (from < text.size() && !is_steady(text[from])) ++from;
  return std::min(from, text.size());
}

void normalise(const Normalizer& normalizer, std::string_view text, NormalText& normal) {
  if (text.size() <= kLongPart || !normalizer.is_local()) {
    normal.text = text;
    return normalizer.apply(normal);
  }
  normal.text.reserve(text.size() + text.size() / 2);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = find_steady(text, begin + kLongPart);
    NormalText part{std::string(text.substr(begin, end - begin)), normal.starts_input, begin == 0};
    normalizer.apply(part);
    if (begin == 0) normal.starts_input = part.starts_input;
    normal.text += part.text;
    begin = end;
  }
}

// Added tokens searched before, or after, normalisation.
std::vector<AddedToken> select_added(const PipelineTokenizer::Parts& parts, bool normalized) {
  std::vector<AddedToken> selected;
  if (!parts.finds_added) return selected;
  for (const AddedToken& token : parts.added) {
    if (token.normalized != normalized) continue;
    selected.push_back(token);
    if (!normalized || !parts.normalizer) continue;
    NormalText normal{token.content, true};
    parts.normalizer->apply(normal);
    selected.back().content = normal.text;
  }
  return selected;
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(Parts parts)
    : parts_(std::move(parts)),
      find_ends_(find_ends_of(parts_.pre_tokenizer->patterns())),
      raw_matcher_(select_added(parts_, false)),
      normalized_matcher_(select_added(parts_, true)),
      vocab_size_(parts_.model->vocabulary().end_id()) {
  for (AddedToken& token : parts_.added) {
    vocab_size_ = std::max<int64_t>(vocab_size_, token.id + 1);
    added_by_id_[token.id] = std::move(token);
  }
  parts_.added.clear();
  for (const std::vector<int32_t>* around : {&parts_.frame.before, &parts_.frame.after}) {
    for (const int32_t id : *around) {
      if (id < vocab_size_) continue;
      throw UserError(fmt::format("{}: post_processor puts the id {} around a text, but the ids end at {}", parts_.name,
                                  id, vocab_size_ - 1),
                      "a token is missing in \"vocab\" or \"added_tokens\": fetch the files of the tokenizer again");
    }
  }
}

std::vector<int32_t> PipelineTokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + parts_.frame.before.size() + parts_.frame.after.size());
  append_ids(text, add_special, ids, nullptr);
  return ids;
}

void PipelineTokenizer::encode_in_runs(std::string_view text, bool add_special, const OnIds& on_ids) const {
  std::vector<int32_t> ids;
  ids.reserve(std::min(text.size() / 3, kRunIds) + parts_.frame.before.size() + parts_.frame.after.size());
  append_ids(text, add_special, ids, &on_ids);
  on_ids(ids);
}

// on_ids, if set, receives batches of ids; the last ones stay in `ids`.
void PipelineTokenizer::append_ids(std::string_view text, bool add_special, std::vector<int32_t>& ids,
                                   const OnIds* on_ids) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  if (add_special) ids.insert(ids.end(), parts_.frame.before.begin(), parts_.frame.before.end());
  const auto put_token = [&](int32_t id) { ids.push_back(id); };
  const auto flush = [&] {
    if (on_ids == nullptr || ids.size() < kRunIds) return;
    (*on_ids)(ids);
    ids.clear();
  };
  const auto put_piece = [&](std::string_view piece) {
    parts_.model->encode(piece, ids);
    flush();
  };
  const auto put_all = [&](std::string_view stretch, size_t begin, std::span<const size_t> ends) {
    parts_.model->encode_all(stretch, begin, ends, ids);
    flush();
  };
  raw_matcher_.split(
      text,
      [&](std::string_view stretch, bool starts_input) {
        NormalText normal{{}, starts_input};
        if (parts_.normalizer) {
          normalise(*parts_.normalizer, stretch, normal);
          stretch = normal.text;
        }
        normalized_matcher_.split(
            stretch,
            [&](std::string_view part, bool is_first) {
              cut({part, is_first && normal.starts_input}, put_piece, put_all);
            },
            put_token);
      },
      put_token);
  if (add_special) ids.insert(ids.end(), parts_.frame.after.begin(), parts_.frame.after.end());
}

// Passes on a text's pieces, one by one or many at a time; long ones in parts where that changes no id.
template <typename PutPiece, typename PutAll>
void PipelineTokenizer::cut(const TextPiece& text, const PutPiece& put_piece, const PutAll& put_all) const {
  const auto put_parts = [&](const TextPiece& piece) {
    std::string_view rest = piece.text;
    while (rest.size() > kLongPart) {
      const size_t cut = parts_.model->find_cut(rest, kLongPart);
      put_piece(rest.substr(0, cut));
      rest.remove_prefix(cut);
    }
    if (!rest.empty()) put_piece(rest);
  };
  if (find_ends_ == nullptr) return parts_.pre_tokenizer->split(text, put_parts);
  std::array<size_t, 512> ends;
  for (size_t begin = 0, at = 0; const size_t count = find_ends_(text.text, at, ends); begin = at) {
    if (at - begin <= kLongPart) {
      put_all(text.text, begin, std::span(ends).first(count));
      continue;
    }
    for (size_t i = 0; i < count; begin = ends[i++]) put_parts({text.text.substr(begin, ends[i] - begin)});
  }
}

std::string PipelineTokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    const auto added = added_by_id_.find(id);
    const bool is_added = added != added_by_id_.end();
    if (skip_special && is_added && added->second.special) continue;
    if (!has_token(id)) continue;
    if (!parts_.decodes_bytes) {
      tokens.push_back(is_added ? added->second.content : spelling(id));
    } else if (is_added) {
      // The ByteLevel decoder also decodes an added token whose characters are all of the alphabet.
      bytes += spelt_bytes(added->second.content).value_or(added->second.content);
    } else {
      bytes += parts_.model->vocabulary().bytes(id);
    }
  }
  if (parts_.decodes_bytes) return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
  if (parts_.decoder) parts_.decoder->apply(tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && !parts_.decoder) text += ' ';
    text += tokens[i];
  }
  return text;
}

bool PipelineTokenizer::is_special(int32_t id) const {
  const auto added = added_by_id_.find(id);
  return added != added_by_id_.end() && added->second.special;
}

bool PipelineTokenizer::has_token(int32_t id) const {
  return added_by_id_.contains(id) || parts_.model->vocabulary().has(id);
}

// A token as spelled in the file.
std::string PipelineTokenizer::spelling(int32_t id) const {
  const std::string_view bytes = parts_.model->vocabulary().bytes(id);
  const bool is_spelt = parts_.is_byte_level && parts_.model->vocabulary().find(bytes) == id;
  return is_spelt ? spell_bytes(bytes) : std::string(bytes);
}

}  // namespace megalith
