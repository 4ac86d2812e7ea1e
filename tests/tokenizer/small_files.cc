#include "tokenizer/small_files.h"

#include <cstdint>
#include <cstring>

namespace megalith::test {
namespace {

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes += static_cast<char>(value);
}

std::string number_field(int number, uint64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(value);
}

std::string bytes_field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}

std::string piece_field(const SmallPiece& piece) {
  std::string score(4, '\0');
  std::memcpy(score.data(), &piece.score, 4);
  return bytes_field(
      1, bytes_field(1, piece.text) + varint(2 << 3 | 5) + score + number_field(3, static_cast<uint64_t>(piece.type)));
}

}  // namespace

std::string base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
  }
  return text;
}

std::string tiktoken_lines(const std::vector<std::string>& more) {
  std::string lines;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) {
    lines += base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(rank++) + "\n";
  }
  for (const std::string& token : more) lines += base64(token) + " " + std::to_string(rank++) + "\n";
  return lines;
}

std::string sentencepiece_model(int kind, const std::vector<SmallPiece>& more, const std::string& charsmap,
                                bool byte_fallback) {
  std::string model;
  for (const SmallPiece& piece : {SmallPiece{"<unk>", 0, 2}, SmallPiece{"<s>", 0, 3}, SmallPiece{"</s>", 0, 3}}) {
    model += piece_field(piece);
  }
  for (const SmallPiece& piece : more) model += piece_field(piece);
  model += bytes_field(2, number_field(3, static_cast<uint64_t>(kind)) + number_field(35, byte_fallback ? 1 : 0));
  return model + bytes_field(3, charsmap.empty() ? std::string() : bytes_field(2, charsmap));
}

}  // namespace megalith::test
