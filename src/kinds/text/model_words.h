// Tokenizer, optional chat template and end tokens of a generating model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinds/text/chat_format.h"
#include "tokenizer/tokenizer.h"
#include "train/config.h"

namespace megalith {

class ModelWords {
 public:
  // The run's tokenizer, or the model's (find_tokenizer()); the run must outlive it. UserError for a chat template that
  // cannot be read.
  explicit ModelWords(const Resolved& run);

  const Tokenizer* tokenizer() const { return tokenizer_; }  // null: none was found
  // UserError if there is none.
  const Tokenizer& require_tokenizer() const;
  const ChatFormat& require_chat() const;
  bool has_chat() const { return chat_.has_value(); }

  // Ends of text of the model and the tokenizer.
  const std::vector<int64_t>& text_ends() const { return text_ends_; }
  // The same, with the chat template's end of an answer.
  const std::vector<int64_t>& answer_ends() const { return answer_ends_; }
  // Describes a tokenizer that was found, for the log.
  const std::optional<std::string>& note() const { return note_; }

 private:
  std::unique_ptr<Tokenizer> own_;
  const Tokenizer* tokenizer_;
  std::optional<ChatFormat> chat_;
  std::vector<int64_t> text_ends_, answer_ends_;
  std::optional<std::string> note_;
};

}  // namespace megalith
