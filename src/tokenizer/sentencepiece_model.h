// SentencePiece's .model: a protocol buffer, parsed by hand because few fields are needed and a damaged file must not
// reach code that trusts it. Source: sentencepiece_model.proto.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace megalith {

struct SentencePiece {
  enum class Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  std::string text;
  float score = 0;
  Type type = Type::kNormal;
};

struct SentencePieceRules {  // of a normalizer
  std::string charsmap;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

struct SentencePieceModel {
  enum class Kind { kUnigram = 1, kBpe = 2, kWord = 3, kCharacter = 4 };
  std::vector<SentencePiece> pieces;
  Kind kind = Kind::kUnigram;
  bool byte_fallback = false, treat_whitespace_as_suffix = false;
  int32_t bos_id = 1, eos_id = 2, pad_id = -1;
  std::string unk_surface = " \u2047 ";
  SentencePieceRules normalizer, denormalizer;
};

// True if a file begins like such a model: with a piece.
bool is_sentencepiece_file(const std::filesystem::path& file);

// UserError, with the byte offset, if truncated, damaged or inconsistent.
SentencePieceModel load_sentencepiece_model(const std::filesystem::path& file);

}  // namespace megalith
