// Pre-tokenizers: cut a text into the pieces that the model encodes one by one. The components of tokenizer.json's
// "pre_tokenizer". Pieces are passed on as found, so a text of any length needs no list of them.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <type_traits>
#include <vector>

namespace megalith {

struct TextPiece {
  std::string_view text;      // valid UTF-8
  bool starts_input = false;  // see NormalText
};

// A reference to a callable that takes a piece; the callable must outlive the call it is passed to.
class PieceSink {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, PieceSink>)
      PieceSink(F&& function)  // NOLINT: conversion from a lambda is the point
      : object_(const_cast<void*>(static_cast<const void*>(&function))),
        call_([](void* object, const TextPiece& piece) {
          (*static_cast<std::remove_reference_t<F>*>(object))(piece);
        }) {}
  void operator()(const TextPiece& piece) const { call_(object_, piece); }

 private:
  void* object_;
  void (*call_)(void*, const TextPiece&);
};

enum class KnownPattern;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Passes on the non-empty pieces of a text, in order.
  virtual void split(const TextPiece& piece, PieceSink sink) const = 0;
  // The patterns that cut one after the other, if nothing else happens to a text; else none.
  virtual std::vector<KnownPattern> patterns() const { return {}; }
};

struct PreTokenizerSpec {
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  // The last step is a ByteLevel that left the bytes as they are, for a model over bytes.
  bool is_byte_level = false;
  bool is_identity = false;  // passes its text on
};

// Reads the component. UserError for an unsupported one, naming it and `where`.
//   keep_bytes  a ByteLevel as the last step must leave the bytes unspelled: see is_byte_level
PreTokenizerSpec make_pre_tokenizer(const nlohmann::json& json, bool keep_bytes, std::string_view where);

// The steps that cut at characters or patterns, or nullptr if `type` is not one of them: Split, Digits, Punctuation,
// Whitespace, WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit, FixedLength.
std::unique_ptr<PreTokenizer> make_split(std::string_view type, const nlohmann::json& json, std::string_view where);
// Matches of a regular expression are pieces, as is the text between them. The patterns of known_pattern.h are matched
// by code of our own.
std::unique_ptr<PreTokenizer> make_pattern_split(std::string_view expression, std::string_view where);

// GPT-2's pattern, which ByteLevel applies with use_regex, and those of Llama 3, Qwen 2, Llama 4 and Mistral's Tekken.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace megalith
