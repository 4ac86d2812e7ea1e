// Instructions as text without a chat template: Stanford Alpaca's words, axolotl's marks of the speakers, SQuAD's line.
#pragma once

#include <string>

#include "data/sft_options.h"

namespace megalith {

struct SftTexts;

struct SftPrompt {
  std::string prompt, answer;
};

// True for alpaca and its kin, and squad: formats of instructions, not of conversations.
bool is_for_instructions(ConversationFormat format);

// By a format without a template; auto: instructions by Alpaca's words, others as they are. UserError for a system or a
// history that the format cannot write.
SftPrompt prompt_of(const SftTexts& texts, ConversationFormat format, const std::string& where);

}  // namespace megalith
