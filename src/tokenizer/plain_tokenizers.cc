// The tokenizers that need no file; see tokenizer.h.
#include <fmt/format.h>

#include <charconv>
#include <iterator>

#include "core/error.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

constexpr size_t kPlainRunIds = size_t{1} << 16;

// Ids 0 … 255 are the bytes, 256 ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    // Malformed text is repaired first, as by every tokenizer, so training data is valid text.
    std::string repaired;
    if (!is_valid_utf8(text)) text = repaired = replace_invalid_utf8(text);
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<uint8_t>(text[i]);
    return ids;
  }
  void encode_in_runs(std::string_view text, bool add_special, const OnIds& on_ids) const override {
    while (!text.empty()) {
      // Cuts no character: at most three bytes continue one.
      size_t end = std::min(text.size(), kPlainRunIds);
      for (int i = 0; i < 3 && end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80; ++i) ++end;
      on_ids(encode(text.substr(0, end), add_special));
      text.remove_prefix(end);
    }
  }
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string bytes;
    for (const int32_t id : ids) {
      if (id >= 0 && id < kEod) bytes += static_cast<char>(id);
      if (id == kEod && !skip_special) bytes += "<|endoftext|>";
    }
    return replace_invalid_utf8(bytes);
  }
  bool is_special(int32_t id) const override { return id == kEod; }
  int64_t vocab_size() const override { return kEod + 1; }
  const SpecialIds& special_ids() const override { return special_; }
  std::string name() const override { return "ByteTokenizer"; }

 private:
  static constexpr int32_t kEod = 256;
  SpecialIds special_{.eod = kEod};
};

// Ids written as numbers: for data that was tokenised elsewhere.
class NullTokenizer final : public Tokenizer {
 public:
  explicit NullTokenizer(int32_t eod) : eod_(eod), special_{.eod = eod} {}

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    std::vector<int32_t> ids;
    encode_in_runs(text, add_special,
                   [&](std::span<const int32_t> run) { ids.insert(ids.end(), run.begin(), run.end()); });
    return ids;
  }
  void encode_in_runs(std::string_view text, bool add_special, const OnIds& on_ids) const override {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size();) {
      if (text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r')) {
        ++i;
        continue;
      }
      int32_t id = -1;
      const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), id);
      const auto next = static_cast<size_t>(end - text.data());
      const bool ends_word = next == text.size() || text[next] == ' ' || (text[next] >= '\t' && text[next] <= '\r');
      if (error != std::errc{} || !ends_word || id < 0 || id > eod_) {
        throw UserError(
            fmt::format("the NullTokenizer reads numbers from 0 to {} separated by blanks, but the text has "
                        "\"{}\"",
                        eod_, text.substr(i, std::min(text.find(' ', i), i + 20) - i)),
            "use another tokenizer_type for text");
      }
      ids.push_back(id);
      i = next;
      if (ids.size() < kPlainRunIds) continue;
      on_ids(ids);
      ids.clear();
    }
    on_ids(ids);
  }
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (skip_special && id == eod_) continue;
      fmt::format_to(std::back_inserter(text), "{}{}", text.empty() ? "" : " ", id);
    }
    return text;
  }
  bool is_special(int32_t id) const override { return id == eod_; }
  int64_t vocab_size() const override { return int64_t{eod_} + 1; }
  const SpecialIds& special_ids() const override { return special_; }
  std::string name() const override { return fmt::format("NullTokenizer({})", eod_); }

 private:
  int32_t eod_;
  SpecialIds special_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_null_tokenizer(int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size >= INT32_MAX) {
    throw UserError(fmt::format("vocab_size {} does not fit the NullTokenizer", vocab_size),
                    "give --vocab_size N with 1 <= N < 2147483647; the tokenizer then has the ids 0 to N");
  }
  return std::make_unique<NullTokenizer>(static_cast<int32_t>(vocab_size));
}

}  // namespace megalith
