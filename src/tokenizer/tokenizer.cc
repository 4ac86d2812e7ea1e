// What all tokenizers share, the two that need no file, and the choice among them; see tokenizer.h.
#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <charconv>

#include "core/error.h"
#include "core/strings.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

// Ids 0 … 255 are the bytes, 256 ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    // Malformed text is repaired first, as for every tokenizer, so what is trained on is valid text.
    std::string repaired;
    if (!is_valid_utf8(text)) text = repaired = replace_invalid_utf8(text);
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<uint8_t>(text[i]);
    return ids;
  }
  std::string token_bytes(int32_t id, bool is_first) const override {
    if (id >= 0 && id < kEod) return std::string(1, static_cast<char>(id));
    return id == kEod ? "<|endoftext|>" : "";
  }
  bool is_special(int32_t id) const override { return id == kEod; }
  int64_t vocab_size() const override { return kEod + 1; }
  std::optional<int32_t> eod() const override { return kEod; }
  std::optional<int32_t> bos() const override { return std::nullopt; }
  std::string name() const override { return "ByteTokenizer"; }

 private:
  static constexpr int32_t kEod = 256;
};

// Ids written as numbers: for data that was tokenised elsewhere.
class NullTokenizer final : public Tokenizer {
 public:
  explicit NullTokenizer(int32_t eod) : eod_(eod) {}

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
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
    }
    return ids;
  }
  std::string token_bytes(int32_t id, bool is_first) const override {
    return fmt::format("{}{}", is_first ? "" : " ", id);
  }
  bool is_special(int32_t id) const override { return id == eod_; }
  int64_t vocab_size() const override { return int64_t{eod_} + 1; }
  std::optional<int32_t> eod() const override { return eod_; }
  std::optional<int32_t> bos() const override { return std::nullopt; }
  std::string name() const override { return fmt::format("NullTokenizer({})", eod_); }

 private:
  int32_t eod_;
};

constexpr const char* kFromJson[] = {"HuggingFaceTokenizer", "Llama2Tokenizer",     "Llama3Tokenizer",
                                     "MixtralTokenizer",     "DeepSeekV2Tokenizer", "DeepSeekV3Tokenizer"};

}  // namespace

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  bool is_first = true;
  for (const int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    bytes += token_bytes(id, is_first);
    is_first = false;
  }
  return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

std::string StreamingDecoder::push(int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) return "";
  pending_ += tokenizer_.token_bytes(id, is_first_);
  is_first_ = false;
  const size_t tail = incomplete_utf8_tail(pending_);
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, pending_.size() - tail));
  pending_.erase(0, pending_.size() - tail);
  return text;
}

std::string StreamingDecoder::finish() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  is_first_ = true;
  return text;
}

int32_t require_eod(const Tokenizer& tokenizer) {
  if (const auto eod = tokenizer.eod()) return *eod;
  throw UserError(fmt::format("the tokenizer {} names no end-of-document token", tokenizer.name()),
                  "add \"eos_token\" to the tokenizer_config.json beside it");
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_null_tokenizer(int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size >= INT32_MAX) {
    throw UserError(fmt::format("vocab_size {} does not fit the NullTokenizer", vocab_size),
                    "give --vocab_size N with 1 <= N < 2147483647; the tokenizer then has the ids 0 to N");
  }
  return std::make_unique<NullTokenizer>(static_cast<int32_t>(vocab_size));
}

void TokenizerOptions::visit(OptionVisitor& v) {
  v.group("Tokenizer");
  v.field("tokenizer_type", tokenizer_type,
          "Kind of tokenizer: HuggingFaceTokenizer (a tokenizer.json; also under the names Llama3Tokenizer, "
          "DeepSeekV3Tokenizer and so on), ByteTokenizer or NullTokenizer. Default: HuggingFaceTokenizer with "
          "tokenizer_model, ByteTokenizer without.");
  v.field("tokenizer_model", tokenizer_model, "tokenizer.json, or a folder that holds one.");
}

void TokenizerOptions::visit_standalone(OptionVisitor& v) {
  visit(v);
  v.field("vocab_size", vocab_size, "Vocabulary size without padding; the NullTokenizer has one id more.").at_least(1);
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options) {
  const std::string type =
      options.tokenizer_type.value_or(options.tokenizer_model ? "HuggingFaceTokenizer" : "ByteTokenizer");
  if (type == "ByteTokenizer") return make_byte_tokenizer();
  if (type == "NullTokenizer") {
    if (!options.vocab_size) {
      throw UserError("tokenizer_type NullTokenizer needs vocab_size", "give --vocab_size N for the ids 0 to N");
    }
    return make_null_tokenizer(*options.vocab_size);
  }
  for (const char* name : kFromJson) {
    if (type != name) continue;
    if (!options.tokenizer_model) {
      throw UserError(fmt::format("tokenizer_type {} needs tokenizer_model", type),
                      "give --tokenizer_model with a tokenizer.json or a folder that holds one");
    }
    return load_tokenizer_json(*options.tokenizer_model);
  }
  std::vector<std::string> known(std::begin(kFromJson), std::end(kFromJson));
  known.insert(known.end(), {"ByteTokenizer", "NullTokenizer"});
  const std::string nearest = nearest_word(type, known);
  throw UserError(fmt::format("tokenizer_type {} is not supported{}", type,
                              nearest.empty() ? "" : fmt::format(". Did you mean {}?", nearest)),
                  "supported are " + join(known, ", "));
}

}  // namespace megalith
