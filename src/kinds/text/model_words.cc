#include "kinds/text/model_words.h"

#include <algorithm>

#include "core/error.h"
#include "train/setup.h"
#include "train/text_tokenizer.h"

namespace megalith {

ModelWords::ModelWords(const Resolved& run)
    : own_(run.tokenizer ? nullptr : find_tokenizer(run)),
      tokenizer_(run.tokenizer ? run.tokenizer.get() : own_.get()) {
  text_ends_ = answer_ends_ = find_stop_ids(run, tokenizer_);
  if (tokenizer_ == nullptr) return;
  // A tokenizer given by options is noted with the configuration.
  if (own_) note_ = note_of_missing_tokens(*own_, run.config, run.derived.vocab_size);
  const std::optional<std::string> folder = own_ ? text_tokenizer(run) : run.derived.tokenizer.tokenizer_model;
  if (!folder || !has_chat_template(*folder)) return;
  chat_.emplace(*tokenizer_, *folder);
  for (const int64_t id : chat_->stop_ids()) {
    if (std::ranges::find(answer_ends_, id) == answer_ends_.end()) answer_ends_.push_back(id);
  }
}

const Tokenizer& ModelWords::require_tokenizer() const {
  if (tokenizer_ != nullptr) return *tokenizer_;
  throw UserError("text needs a tokenizer, and none was found",
                  "name one with --tokenizer_model; only generate does without, with --prompt_ids and --print_ids");
}

const ChatFormat& ModelWords::require_chat() const {
  require_tokenizer();
  if (chat_) return *chat_;
  throw UserError("a conversation needs a chat template, and this model's tokenizer has none",
                  "name the folder of one that has with --tokenizer_model; megalith generate --prompt needs none");
}

}  // namespace megalith
