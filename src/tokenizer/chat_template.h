// A model's chat template: turns a conversation into text as in the model's training. Comes with the tokenizer:
// chat_template.jinja, or "chat_template" in tokenizer_config.json.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "tokenizer/jinja_template.h"

namespace megalith {

class ChatTemplate {
 public:
  // special_tokens  bos_token, eos_token, … by these names, which templates print
  ChatTemplate(std::string source, std::string name, JinjaMembers special_tokens);

  // messages               a list of {"role": …, "content": …}
  // tools                  a list of functions that the model may call; null: none
  // add_generation_prompt  ends with the prompt for the model's answer
  // variables              more of them, by name; nullptr: none
  // UserError, with the template's line, if the template refuses.
  std::string render(const OrderedJson& messages, const OrderedJson& tools, bool add_generation_prompt,
                     const OrderedJson* variables = nullptr) const;
  // True if the word occurs in the template, which reads no other keys and variables.
  bool mentions(std::string_view word) const;
  // True if it occurs as a member's name: .word, 'word' or "word".
  bool reads_member(std::string_view word) const;

  const std::string& name() const { return name_; }
  // The template and its special tokens: equal ones render equal texts.
  const std::string& identity() const { return identity_; }

 private:
  std::string name_, identity_;
  JinjaMembers special_tokens_;
  JinjaTemplate template_;
};

// True if a folder, or the folder of a file, holds a chat template.
bool has_chat_template(const std::filesystem::path& tokenizer_model);

// tokenizer_model is a folder, or a file in it; empty for a tokenizer without files. UserError if there is no template
// or it cannot be read.
ChatTemplate load_chat_template(const std::filesystem::path& tokenizer_model);

// JSON that keeps the order of object members, as templates print them. UserError as parse_json().
OrderedJson parse_ordered_json(std::string_view text, std::string_view where);

}  // namespace megalith
