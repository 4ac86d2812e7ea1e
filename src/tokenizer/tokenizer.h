// Tokenizers: text to token ids and back.
//
// A tokenizer is immutable once made, so any number of threads can share it. Invalid UTF-8 is read as with Python's
// errors='replace'. Special tokens in the text ("<|eot_id|>") become their ids if the format's own library does so;
// beginning and end tokens are added only on request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/option.h"
#include "tokenizer/special_ids.h"

namespace megalith {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // add_special  also adds the tokens of the tokenizer's post-processor (Llama 3: the beginning of text)
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special = false) const = 0;

  // The ids of encode() in runs, in order, so that a long text's need not all be in memory. Default: one run.
  using OnIds = std::function<void(std::span<const int32_t>)>;
  virtual void encode_in_runs(std::string_view text, bool add_special, const OnIds& on_ids) const {
    on_ids(encode(text, add_special));
  }

  // The text of the ids, valid UTF-8 (bytes that form no character become U+FFFD). Ids without a token give nothing.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;

  virtual bool is_special(int32_t id) const = 0;
  // False beyond the vocabulary and in its holes.
  virtual bool has_token(int32_t id) const { return id >= 0 && id < vocab_size(); }

  // Upper bound of all ids. Counts added tokens; without padding for parallelism.
  virtual int64_t vocab_size() const = 0;
  virtual const SpecialIds& special_ids() const = 0;
  std::optional<int32_t> eod() const { return special_ids().eod; }  // end of document
  std::optional<int32_t> bos() const { return special_ids().bos; }  // beginning of text
  std::optional<int32_t> pad() const { return special_ids().pad; }
  // The tokenizer and its file, for reports and the index cache.
  virtual std::string name() const = 0;
};

// The end-of-document id; UserError if there is none.
int32_t require_eod(const Tokenizer& tokenizer);

// Identifies a tokenizer by what it does, independent of file and format: the text of every id below num_ids (of the
// first million), and the ids of a text in which most tokenizers differ. Not included: which ids are special, and ids
// above num_ids, such as the sentinels of vocab_extra_ids.
std::string tokenizer_digest(const Tokenizer& tokenizer, int64_t num_ids);

// Turns ids into text one at a time, as a model generates them, never splitting a character: the parts add up to
// decode() of all ids, except that an id without a token, which decode() omits, is shown as "<|id:1234|>". The
// tokenizer must outlive it.
//
// A token's text can depend on its neighbours (leading blanks, bytes that only together form a character), so a window
// of the last ids is decoded with and without the new one, and the difference is returned once it is whole.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text completed by this id; often empty in the middle of a character.
  std::string push(int32_t id);
  // The rest: an unfinished character as U+FFFD. Resets the decoder.
  std::string finish();

 private:
  std::string take(const std::string& text);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<int32_t> window_;
  std::string given_;  // the part of the window's text already returned
  int num_held_ = 0;   // ids since text was last returned
};

struct TokenizerOptions {
  std::optional<std::string> tokenizer_type;
  std::optional<std::string> tokenizer_model;  // a file or a folder
  std::optional<std::string> vocab_file, merge_file;
  int64_t vocab_extra_ids = 0;
  std::string tiktoken_pattern = "v2";
  int64_t tiktoken_num_special_tokens = 1000;
  std::vector<std::string> tiktoken_special_tokens;
  std::optional<int64_t> vocab_size;  // for the NullTokenizer and TikTokenizer

  // All but vocab_size, which belongs to the model's options if there is a model.
  void visit(OptionVisitor& v);
  // vocab_size too, for programs without a model.
  void visit_standalone(OptionVisitor& v);
  // True if the user chose one: otherwise training from .bin files opens no tokenizer.
  bool is_named() const { return tokenizer_type || tokenizer_model || vocab_file; }
};

// The tokenizer named by the options; by default the byte tokenizer. UserError for unknown types, missing files and
// invalid contents.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options);

// The 256 bytes and an end-of-document token (id 256): needs no file.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
// Text is ids separated by blanks; ids 0 … vocab_size, the last one ending a document. As Megatron's.
std::unique_ptr<Tokenizer> make_null_tokenizer(int64_t vocab_size);

}  // namespace megalith
