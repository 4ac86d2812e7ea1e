// Converts a row of instruction data to tokens, and selects those that count in the loss.
//
// Nothing is guessed from marks in a template. An answer begins where the conversation before it, rendered with what
// makes the model answer, ends; it ends where the conversation up to it ends, but for what the template writes after
// every answer: that is found by rendering other answers instead, and of it the first special token counts, which ends
// the answer when the model writes. Where a template writes earlier messages differently once more follow, the
// other answers are rendered into the whole conversation, and where the texts differ is the answer.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/sft_options.h"
#include "kinds/text/sft_rows.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

struct SftMessages;
struct SftTexts;
struct SftTokens;

struct SftSample {
  SftForm form = SftForm::kText;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> weights;  // of each token as a label: 1 or 0
  // Of kPairs: where the rejected answer's sequence begins, after the chosen one's; each begins with the question.
  size_t rejected_begin = 0;
  bool is_bad = false;               // of kRated
  int64_t num_without_thoughts = 0;  // learned answers whose thoughts the chat template omits
  int64_t num_without_end = 0;       // learned answers after which the chat template writes nothing
  // "name of the user's message": messages with a key that the chat template reads elsewhere, and not there.
  std::map<std::string, int64_t> num_unread = {};

  // Labels in the loss: the first token of a sequence is no label. Nothing counts of a pair in which one answer
  // has none.
  int64_t num_counted() const;
};

class SftEncoder {
 public:
  // tokenizer_model  where the chat template is, if there is one
  // The tokenizer outlives the encoder. UserError for a template that cannot be read.
  SftEncoder(const Tokenizer& tokenizer, const std::filesystem::path& tokenizer_model, const SftOptions& options);

  // UserError, naming the row, for unusable rows. Thread-safe.
  SftSample encode(const SftLine& line) const;

  // All that the tokens depend on besides the rows, in 16 digits: equal ones make equal tokens of equal rows, wherever
  // the tokenizer is stored.
  std::string identity() const;
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  SftSample encode_chat(const SftMessages& messages, const OrderedJson& tools, const OrderedJson& variables,
                        const std::string& where) const;
  // A question and its answer as texts, by sft_conversation_format.
  SftSample encode_texts(const SftTexts& texts, const std::string& where) const;
  SftSample encode_tokens(const SftTokens& tokens, const std::string& where) const;
  SftSample encode_answer(const std::string& prompt, const std::string& answer) const;
  // UserError for keys of messages, tools and variables that the template does not read.
  void check_read(const OrderedJson& messages, const OrderedJson& tools, const OrderedJson& variables) const;
  const ChatTemplate& chat_template() const;

  const Tokenizer& tokenizer_;
  std::filesystem::path tokenizer_model_;
  std::optional<ChatTemplate> chat_;
  SftOptions options_;
  std::string variables_;  // for the template, from the options, as JSON
};

}  // namespace megalith
