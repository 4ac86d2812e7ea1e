#include "tokenizer/sentencepiece_model.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/token_model.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// The fields of one protocol buffer message, in order.
class Message {
 public:
  // base  offset of the bytes in the file, for errors
  Message(std::string_view bytes, size_t base, const std::string& file) : bytes_(bytes), base_(base), file_(file) {}

  // Moves to the next field; false at the end.
  bool next() {
    if (at_ >= bytes_.size()) return false;
    start_ = at_;
    const uint64_t key = read_varint();
    number_ = key >> 3;
    wire_ = static_cast<int>(key & 7);
    switch (wire_) {
      case 0:
        value_ = read_varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        take(read_varint());
        break;
      case 5:
        take(4);
        break;
      default:
        fail("a field of unknown form");
    }
    return true;
  }
  uint64_t number() const { return number_; }

  uint64_t integer() const { return want(0), value_; }
  std::string_view bytes() const { return want(2), payload_; }
  float real() const {
    want(5);
    float value = 0;
    std::memcpy(&value, payload_.data(), sizeof value);
    return value;
  }
  Message message() const { return {bytes(), base_ + static_cast<size_t>(payload_.data() - bytes_.data()), file_}; }

  [[noreturn]] void fail(std::string_view what) const {
    throw UserError(fmt::format("{}: {} at byte {}", file_, what, base_ + start_),
                    "it is not a SentencePiece model, or was cut or damaged; fetch it again");
  }

 private:
  uint64_t read_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ >= bytes_.size()) fail("a number is cut off");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      if (shift < 64) value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail("a number is too long");
  }
  void take(uint64_t size) {
    if (size > bytes_.size() - at_) fail("a field is longer than what is left");
    payload_ = bytes_.substr(at_, static_cast<size_t>(size));
    at_ += static_cast<size_t>(size);
  }
  void want(int wire) const {
    if (wire_ != wire) fail(fmt::format("field {} has another form than expected", number_));
  }

  std::string_view bytes_, payload_;
  size_t base_, at_ = 0, start_ = 0;
  std::string file_;
  uint64_t number_ = 0, value_ = 0;
  int wire_ = 0;
};

SentencePiece read_piece(Message message) {
  SentencePiece piece;
  while (message.next()) {
    switch (message.number()) {
      case 1:
        piece.text = message.bytes();
        break;
      case 2:
        piece.score = message.real();
        break;
      case 3:
        if (message.integer() < 1 || message.integer() > 6) message.fail("a piece of unknown type");
        piece.type = static_cast<SentencePiece::Type>(message.integer());
        break;
      default:
        break;
    }
  }
  if (piece.text.empty()) message.fail("an empty piece");
  if (!is_valid_utf8(piece.text)) message.fail("a piece that is not valid UTF-8");
  if (!std::isfinite(piece.score)) message.fail("a piece without finite score");
  return piece;
}

void read_trainer(Message message, SentencePieceModel& model) {
  while (message.next()) {
    switch (message.number()) {
      case 3:
        if (message.integer() < 1 || message.integer() > 4) message.fail("a model of unknown type");
        model.kind = static_cast<SentencePieceModel::Kind>(message.integer());
        break;
      case 24:
        model.treat_whitespace_as_suffix = message.integer() != 0;
        break;
      case 35:
        model.byte_fallback = message.integer() != 0;
        break;
      case 41:
        model.bos_id = static_cast<int32_t>(message.integer());
        break;
      case 42:
        model.eos_id = static_cast<int32_t>(message.integer());
        break;
      case 43:
        model.pad_id = static_cast<int32_t>(message.integer());
        break;
      case 44:
        model.unk_surface = replace_invalid_utf8(message.bytes());
        break;
      default:
        break;
    }
  }
}

void read_rules(Message message, SentencePieceRules& rules) {
  while (message.next()) {
    switch (message.number()) {
      case 2:
        rules.charsmap = message.bytes();
        break;
      case 3:
        rules.add_dummy_prefix = message.integer() != 0;
        break;
      case 4:
        rules.remove_extra_whitespaces = message.integer() != 0;
        break;
      case 5:
        rules.escape_whitespaces = message.integer() != 0;
        break;
      default:
        break;
    }
  }
}

void check(const SentencePieceModel& model, const std::string& file) {
  using Type = SentencePiece::Type;
  if (model.pieces.empty()) throw UserError(fmt::format("{}: no pieces", file), "it is not a SentencePiece model");
  if (static_cast<int64_t>(model.pieces.size()) >= kMaxTokenId) {
    throw UserError(fmt::format("{}: {} pieces", file, model.pieces.size()));
  }
  // Normal and reserved pieces have separate name spaces.
  std::set<std::string_view> normal, reserved;
  int num_unknown = 0;
  std::vector<bool> has_byte(256);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    const bool is_normal =
        piece.type == Type::kNormal || piece.type == Type::kUserDefined || piece.type == Type::kUnused;
    if (!(is_normal ? normal : reserved).insert(piece.text).second) {
      throw UserError(fmt::format("{}: piece {} is \"{}\" again", file, i, piece.text));
    }
    num_unknown += piece.type == Type::kUnknown ? 1 : 0;
    if (piece.type != Type::kByte) continue;
    const int byte = fallback_byte(piece.text);
    if (byte < 0) throw UserError(fmt::format("{}: piece {}, \"{}\", stands for no byte", file, i, piece.text));
    has_byte[static_cast<size_t>(byte)] = true;
  }
  if (num_unknown != 1) throw UserError(fmt::format("{}: {} unknown pieces, expected one", file, num_unknown));
  for (size_t byte = 0; model.byte_fallback && byte < 256; ++byte) {
    if (!has_byte[byte]) throw UserError(fmt::format("{}: byte_fallback without a piece for byte {}", file, byte));
  }
}

}  // namespace

bool is_sentencepiece_file(const fs::path& file) {
  return read_beginning(file, 1) == "\x0A";  // field 1, a message
}

SentencePieceModel load_sentencepiece_model(const fs::path& file) {
  const MappedFile mapped(file, MappedFile::Access::kSequential);
  SentencePieceModel model;
  Message message(mapped.text(), 0, file.string());
  while (message.next()) {
    switch (message.number()) {
      case 1:
        model.pieces.push_back(read_piece(message.message()));
        break;
      case 2:
        read_trainer(message.message(), model);
        break;
      case 3:
        read_rules(message.message(), model.normalizer);
        break;
      case 5:
        read_rules(message.message(), model.denormalizer);
        break;
      default:
        break;
    }
  }
  check(model, file.string());
  return model;
}

}  // namespace megalith
