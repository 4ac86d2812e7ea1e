// Small tokenizer files of every format, made in memory: what the tests of formats and of hostile input start from.
#pragma once

#include <string>
#include <vector>

namespace megalith::test {

std::string base64(const std::string& bytes);

// tiktoken's lines: the 256 bytes and a few merged tokens.
std::string tiktoken_lines(const std::vector<std::string>& more = {"ab", "abc", " a", "é"});

struct SmallPiece {
  std::string text;
  float score;
  int type;  // 1 normal, 2 unknown, 3 control, 4 user defined, 6 byte
};
// SentencePiece's protocol buffer; kind 1 is Unigram, 2 byte-pair encoding.
std::string sentencepiece_model(int kind, const std::vector<SmallPiece>& more, const std::string& charsmap = "",
                                bool byte_fallback = false);

}  // namespace megalith::test
