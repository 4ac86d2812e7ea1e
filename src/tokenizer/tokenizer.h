// Tokenizers: text to token ids and back.
//
// A tokenizer is immutable after it has been made, so one object serves any number of threads. Text that is not valid
// UTF-8 is read as Python's errors='replace' reads it. Special tokens that appear in the text ("<|eot_id|>") become
// their ids; beginning and end tokens are added only on request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/option.h"

namespace megalith {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // add_special  also adds what the tokenizer's own post-processor adds (Llama 3: the beginning of text)
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special = false) const = 0;

  // The text of the ids, valid UTF-8 (bytes that form no character become U+FFFD). Ids without a token give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // What a token contributes to the text: bytes, perhaps part of a character. `is_first` says that no token came
  // before (some decoders treat it differently).
  virtual std::string token_bytes(int32_t id, bool is_first) const = 0;
  virtual bool is_special(int32_t id) const = 0;

  // All ids are below it. Counts added tokens; without padding for parallelism.
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> eod() const = 0;  // end of document
  virtual std::optional<int32_t> bos() const = 0;  // beginning of text
  virtual std::optional<int32_t> pad() const { return std::nullopt; }
  // Names the tokenizer and its file, for reports and for the index cache.
  virtual std::string name() const = 0;
};

// The end-of-document id; UserError when the tokenizer has none.
int32_t require_eod(const Tokenizer& tokenizer);

// Turns ids into text one at a time, as a model generates them, and never hands out part of a character. The tokenizer
// must outlive it.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that became complete with this id; often empty in the middle of a character.
  std::string push(int32_t id);
  // What is left: an unfinished character as U+FFFD. The decoder starts anew.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  bool is_first_ = true;
  std::string pending_;
};

struct TokenizerOptions {
  std::optional<std::string> tokenizer_type;
  std::optional<std::string> tokenizer_model;
  std::optional<int64_t> vocab_size;  // for the NullTokenizer

  // Type and file; vocab_size is the model's option where there is a model.
  void visit(OptionVisitor& v);
  // vocab_size too, for programs without a model.
  void visit_standalone(OptionVisitor& v);
  // Whether the user chose one: training from .bin files opens no tokenizer otherwise.
  bool is_named() const { return tokenizer_type || tokenizer_model; }
};

// The tokenizer the options name; the byte tokenizer when they name none. UserError for unknown types, missing files
// and contents that cannot work.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options);

// The 256 bytes and an end-of-document token (id 256): needs no file.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
// Text is ids separated by blanks; ids 0 … vocab_size, the last being the end of a document. As Megatron's.
std::unique_ptr<Tokenizer> make_null_tokenizer(int64_t vocab_size);

}  // namespace megalith
