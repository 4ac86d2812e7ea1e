// See token_decoder.h. Semantics as in Hugging Face's `tokenizers`.
#include "tokenizer/token_decoder.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/regex.h"
#include "tokenizer/split.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text.find(from, done)) != std::string::npos; done = at + from.size()) {
    out.append(text, done, at - done);
    out += to;
  }
  if (done == 0) return;
  out.append(text, done);
  text = std::move(out);
}

// Removes blanks that cutting words at punctuation introduced, as BERT's decoder does.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

class ByteLevelDecoder final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += spelt_bytes(token).value_or(token);
    tokens.assign(1, replace_invalid_utf8(bytes));
  }
};

class ByteFallbackDecoder final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (is_valid_utf8(bytes)) {
        if (!bytes.empty()) out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), std::string(kReplacementCharacter));
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = fallback_byte(token); byte >= 0) {
        bytes += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }
};

class FuseDecoder final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string whole;
    for (const std::string& token : tokens) whole += token;
    tokens.assign(1, std::move(whole));
  }
};

class MetaspaceDecoder final : public TokenDecoder {
 public:
  MetaspaceDecoder(uint32_t replacement, bool has_prefix) : has_prefix_(has_prefix) {
    append_utf8(replacement, replacement_);
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], replacement_, i == 0 && has_prefix_ ? "" : " ");
  }

 private:
  std::string replacement_;
  bool has_prefix_;
};

class ReplaceDecoder final : public TokenDecoder {
 public:
  ReplaceDecoder(Regex regex, std::string content) : regex_(std::move(regex)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      if (token.empty()) continue;
      std::string out;
      size_t done = 0, begin = 0, end = 0;
      Regex::Scanner scanner(regex_, token);
      while (scanner.next(begin, end)) {
        out.append(token, done, begin - done);
        out += content_;
        done = end;
      }
      out.append(token, done);
      token = std::move(out);
    }
  }

 private:
  Regex regex_;
  std::string content_;
};

// Plain text is replaced without a regular expression.
class ReplaceTextDecoder final : public TokenDecoder {
 public:
  ReplaceTextDecoder(std::string from, std::string content) : from_(std::move(from)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) replace_all(token, from_, content_);
  }

 private:
  std::string from_, content_;
};

class StripDecoder final : public TokenDecoder {
 public:
  StripDecoder(uint32_t content, int64_t start, int64_t stop) : start_(start), stop_(stop) {
    append_utf8(content, content_);
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start_ && rest.starts_with(content_); ++i) rest.remove_prefix(content_.size());
      for (int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i) rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

class WordPieceDecoder final : public TokenDecoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix_)) {
        tokens[i].erase(0, prefix_.size());
      } else if (i > 0) {
        tokens[i].insert(0, 1, ' ');
      }
      if (cleanup_) clean_up(tokens[i]);
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

// Ends of words become blanks, except the last.
class BpeDecoder final : public TokenDecoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  std::string suffix_;
};

// Connectionist temporal classification: repeated tokens count once, padding is dropped.
class CtcDecoder final : public TokenDecoder {
 public:
  CtcDecoder(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i] == tokens[i - 1]) continue;
      std::string token = tokens[i];
      replace_all(token, pad_, "");
      if (cleanup_) {
        clean_up(token);
        replace_all(token, delimiter_, " ");
      }
      if (!token.empty()) out.push_back(std::move(token));
    }
    tokens = std::move(out);
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

class DecoderSequence final : public TokenDecoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<TokenDecoder>> steps) : steps_(std::move(steps)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (const auto& step : steps_) step->apply(tokens);
  }

 private:
  std::vector<std::unique_ptr<TokenDecoder>> steps_;
};

std::unique_ptr<TokenDecoder> make_replace_decoder(const Json& json, std::string_view where) {
  const Json& pattern = get_member(json, "pattern", where);
  auto content = json_get<std::string>(json, "content", where);
  if (pattern.is_object()) {
    if (const auto text = json_find<std::string>(pattern, "String", where)) {
      return std::make_unique<ReplaceTextDecoder>(*text, std::move(content));
    }
  }
  return std::make_unique<ReplaceDecoder>(Regex(read_pattern(pattern, where), where), std::move(content));
}

}  // namespace

int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::unique_ptr<TokenDecoder> make_token_decoder(const Json& json, std::string_view where) {
  const auto type = json_get<std::string>(json, "type", where);
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "Metaspace") {
    const bool add_prefix = json_get_or(json, "add_prefix_space", true, where);
    const auto scheme = json_get_or<std::string>(json, "prepend_scheme", add_prefix ? "always" : "never", where);
    return std::make_unique<MetaspaceDecoder>(read_character(json, "replacement", where), scheme != "never");
  }
  if (type == "Replace") return make_replace_decoder(json, where);
  if (type == "Strip") {
    return std::make_unique<StripDecoder>(read_character(json, "content", where),
                                          json_get<int64_t>(json, "start", where),
                                          json_get<int64_t>(json, "stop", where));
  }
  if (type == "WordPiece") {
    return std::make_unique<WordPieceDecoder>(json_get_or<std::string>(json, "prefix", "##", where),
                                              json_get_or(json, "cleanup", true, where));
  }
  if (type == "BPEDecoder") {
    return std::make_unique<BpeDecoder>(json_get_or<std::string>(json, "suffix", "</w>", where));
  }
  if (type == "CTC") {
    return std::make_unique<CtcDecoder>(json_get_or<std::string>(json, "pad_token", "<pad>", where),
                                        json_get_or<std::string>(json, "word_delimiter_token", "|", where),
                                        json_get_or(json, "cleanup", true, where));
  }
  if (type == "Sequence") {
    const Json& list = get_member(json, "decoders", where);
    if (!list.is_array()) throw UserError(fmt::format("{}: \"decoders\" is not a list", where));
    std::vector<std::unique_ptr<TokenDecoder>> steps;
    for (const Json& step : list) steps.push_back(make_token_decoder(step, where));
    return std::make_unique<DecoderSequence>(std::move(steps));
  }
  throw UserError(fmt::format("{}: decoder \"{}\" is not supported", where, type),
                  "supported are ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, WordPiece, BPEDecoder, CTC "
                  "and Sequence");
}

}  // namespace megalith
