#include "kinds/text/sft_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "kinds/text/sft_row.h"

namespace megalith {
namespace {

// Stanford Alpaca's prompt (github.com/tatsu-lab/stanford_alpaca), used to train on data sets of its form.
constexpr std::string_view kAlpacaWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.";
constexpr std::string_view kAlpacaWithoutInput =
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.";

// The marks of speakers around them: Stanford Alpaca's, then axolotl's (prompters.py, PromptStyle).
struct AlpacaForm {
  ConversationFormat format;
  std::string_view system, with_input, without_input;
};
constexpr AlpacaForm kAlpacaForms[] = {
    {ConversationFormat::kAlpaca, "{}\n\n", "### Instruction:\n{}\n\n### Input:\n{}\n\n### Response:\n",
     "### Instruction:\n{}\n\n### Response:\n"},
    {ConversationFormat::kAlpacaChat, "SYSTEM: {}\n", "USER: {}\n{}\nASSISTANT:", "USER: {}\nASSISTANT:"},
    {ConversationFormat::kAlpacaChatMl, "<|im_start|>system\n{}<|im_end|>\n",
     "<|im_start|>user\n{}\n{}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"},
    {ConversationFormat::kAlpacaPhi, "<|system|>\n{}<|end|>\n", "<|user|>\n{}<|end|>{}<|assistant|>",
     "<|user|>\n{}<|end|>\n<|assistant|>\n"},
};

const AlpacaForm* alpaca_form(ConversationFormat format) {
  const auto* found = std::ranges::find(kAlpacaForms, format, &AlpacaForm::format);
  return found == std::end(kAlpacaForms) ? nullptr : found;
}

// A row's own system replaces these words.
std::string alpaca_prompt(const SftTexts& texts, const AlpacaForm& form) {
  const bool has_input = !texts.input.empty();
  const std::string_view system = !texts.system.empty() ? std::string_view(texts.system)
                                  : has_input           ? kAlpacaWithInput
                                                        : kAlpacaWithoutInput;
  const std::string words = fmt::format(fmt::runtime(form.system), system);
  return has_input ? words + fmt::format(fmt::runtime(form.with_input), texts.question, texts.input)
                   : words + fmt::format(fmt::runtime(form.without_input), texts.question);
}

// Primus's and NeMo's form of a SQuAD row, on one line; the answer follows after a blank.
constexpr std::string_view kSquad = "Context: {} Question: {} Answer:";

std::string_view without_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

}  // namespace

bool is_for_instructions(ConversationFormat format) {
  return alpaca_form(format) != nullptr || format == ConversationFormat::kSquad;
}

SftPrompt prompt_of(const SftTexts& texts, ConversationFormat format, const std::string& where) {
  const bool is_squad = format == ConversationFormat::kSquad;
  const bool is_alpaca = !is_squad && (texts.is_instruction || alpaca_form(format) != nullptr);
  if (!texts.history.empty() || (!texts.system.empty() && !is_alpaca)) {
    throw UserError(fmt::format("{}: the row has a {}, and is written without a chat template", where,
                                texts.history.empty() ? "system" : "history"),
                    "write the rows by the model's template: --sft_conversation_format chat_template");
  }
  if (is_squad) {
    return {fmt::format(fmt::runtime(kSquad), without_blanks(texts.input), without_blanks(texts.question)),
            fmt::format(" {}", without_blanks(texts.answer))};
  }
  if (!is_alpaca) return {texts.question, texts.answer};
  const AlpacaForm* form = alpaca_form(format);
  return {alpaca_prompt(texts, form == nullptr ? kAlpacaForms[0] : *form), texts.answer};
}

}  // namespace megalith
