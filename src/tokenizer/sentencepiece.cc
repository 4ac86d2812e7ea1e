#include "tokenizer/sentencepiece.h"

#include <fmt/format.h>

#include <map>

#include "core/error.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/sentencepiece_encoder.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_cuts.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

using Type = SentencePiece::Type;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, std::string name, std::vector<AddedToken> added, SpecialIds special,
                         bool adds_bos)
      : name_(std::move(name)),
        model_(std::move(model)),
        encoder_(model_, name_),
        denormalizer_(model_.denormalizer, false, nullptr, name_),
        matcher_(added),
        special_(std::move(special)),
        adds_bos_(adds_bos),
        vocab_size_(static_cast<int64_t>(model_.pieces.size())) {
    for (const AddedToken& token : added) {
      vocab_size_ = std::max<int64_t>(vocab_size_, token.id + 1);
      added_[token.id] = token.content;
    }
  }

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    std::vector<int32_t> ids;
    append_ids(text, add_special, ids, {});
    return ids;
  }
  void encode_in_runs(std::string_view text, bool add_special, const OnIds& on_ids) const override {
    constexpr size_t kRunIds = size_t{1} << 16;
    std::vector<int32_t> ids;
    append_ids(text, add_special, ids, [&] {
      if (ids.size() < kRunIds) return;
      on_ids(ids);
      ids.clear();
    });
    on_ids(ids);
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    size_t begin = 0;
    for (size_t i = 0; i <= ids.size(); ++i) {
      const auto added = i < ids.size() ? added_.find(ids[i]) : added_.end();
      if (i < ids.size() && added == added_.end()) continue;
      text += decode_pieces(ids.subspan(begin, i - begin));
      begin = i + 1;
      if (i < ids.size() && !skip_special) text += fmt::format(" {} ", added->second);
    }
    return text;
  }

  bool is_special(int32_t id) const override {
    if (added_.contains(id)) return true;
    if (id < 0 || static_cast<size_t>(id) >= model_.pieces.size()) return false;
    const Type type = model_.pieces[static_cast<size_t>(id)].type;
    return type == Type::kControl || type == Type::kUnknown;
  }

  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialIds& special_ids() const override { return special_; }
  std::string name() const override { return name_; }

 private:
  void append_ids(std::string_view text, bool add_special, std::vector<int32_t>& ids,
                  const std::function<void()>& on_word) const {
    std::string repaired;
    if (!is_valid_utf8(text)) {
      repaired = replace_invalid_utf8(text);
      text = repaired;
    }
    if (add_special && adds_bos_ && special_.bos) ids.push_back(*special_.bos);
    matcher_.split(
        text, [&](std::string_view part, bool) { encoder_.encode(part, ids, on_word); },
        [&](int32_t id) { ids.push_back(id); });
  }

  std::string decode_pieces(std::span<const int32_t> ids) const {
    std::string text, bytes;
    bool may_strip = true, stripped = false;
    const bool strips = model_.normalizer.add_dummy_prefix || model_.normalizer.remove_extra_whitespaces;
    const auto flush = [&] {
      // Every byte that begins no character becomes one U+FFFD.
      for (size_t i = 0; i < bytes.size();) {
        const Utf8Step step = decode_utf8(std::string_view(bytes).substr(i));
        const size_t length = step.is_valid ? static_cast<size_t>(step.length) : 1;
        text += step.is_valid ? bytes.substr(i, length) : "\xEF\xBF\xBD";
        i += length;
      }
      bytes.clear();
    };
    for (const int32_t id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= model_.pieces.size()) continue;
      const SentencePiece& piece = model_.pieces[static_cast<size_t>(id)];
      if (piece.type == Type::kByte) {
        bytes += static_cast<char>(fallback_byte(piece.text));
        continue;
      }
      flush();
      // Removes the blank that encoding prepended; all leading blanks if encoding removed extra ones.
      if (stripped || !text.empty()) may_strip = false;
      stripped = false;
      if (piece.type == Type::kControl) continue;
      if (piece.type == Type::kUnknown) {
        text += model_.unk_surface;
        continue;
      }
      std::string_view rest = piece.text;
      if (may_strip && strips && rest.starts_with(kWordMark)) {
        rest.remove_prefix(kWordMark.size());
        stripped = !model_.normalizer.remove_extra_whitespaces;
      }
      for (size_t at; (at = rest.find(kWordMark)) != std::string_view::npos;
           rest.remove_prefix(at + kWordMark.size())) {
        text += rest.substr(0, at);
        text += ' ';
      }
      text += rest;
    }
    flush();
    return model_.denormalizer.charsmap.empty() ? text : denormalizer_.normalize(text);
  }

  std::string name_;
  SentencePieceModel model_;
  SentencePieceEncoder encoder_;
  SentencePieceNormalizer denormalizer_;
  AddedTokenMatcher matcher_;
  SpecialIds special_;
  bool adds_bos_;
  int64_t vocab_size_;
  std::map<int32_t, std::string> added_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const fs::path& file, SentencePieceKind kind, int64_t num_extra_ids) {
  if (!fs::exists(file)) {
    throw UserError(fmt::format("tokenizer_model {} does not exist", file.string()), "name a SentencePiece .model");
  }
  SentencePieceModel model = load_sentencepiece_model(file);
  std::map<std::string, int32_t, std::less<>> by_text;
  for (size_t i = 0; i < model.pieces.size(); ++i) by_text[model.pieces[i].text] = narrow<int32_t>(i);
  const auto valid = [&](int32_t id) -> std::optional<int32_t> {
    const bool is_valid = id >= 0 && static_cast<size_t>(id) < model.pieces.size();
    return is_valid ? std::optional(id) : std::nullopt;
  };
  SpecialIds special{.eod = valid(model.eos_id), .bos = valid(model.bos_id), .pad = valid(model.pad_id)};
  std::vector<AddedToken> added;
  if (kind == SentencePieceKind::kMegatron) {
    int32_t next_id = narrow<int32_t>(model.pieces.size());
    const auto add = [&](const std::string& content) {
      const auto [place, is_new] = by_text.try_emplace(content, next_id);
      next_id += is_new ? 1 : 0;
      added.push_back({.id = place->second, .content = content, .special = true});
      return place->second;
    };
    const auto piece_or = [&](std::optional<int32_t> id, const char* name) {
      return id ? model.pieces[static_cast<size_t>(*id)].text : std::string(name);
    };
    special.cls = add("<CLS>");
    special.sep = add("<SEP>");
    const int32_t eod = add("<EOD>");
    special.mask = add("<MASK>");
    special.pad = add(piece_or(special.pad, "<PAD>"));
    special.bos = add(piece_or(special.bos, "<BOS>"));
    add(piece_or(special.eod, "<EOS>"));
    special.eod = eod;
    for (int64_t i = 0; i < num_extra_ids; ++i) special.extra.push_back(add(fmt::format("<extra_id_{}>", i)));
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(model), file.string(), std::move(added), std::move(special),
                                                  kind == SentencePieceKind::kLlama2);
}

}  // namespace megalith
