// megalith generate --input: answers a file of prompts in batches.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/log.h"
#include "kinds/text/generation.h"
#include "kinds/text/model_words.h"
#include "kinds/text/text_batch.h"

namespace megalith {

struct PromptRow {
  OrderedJson row;  // as read
  GenerationRequest request;
};

// A conversation as given with --messages: a list of messages, or an object with messages and optional tools.
struct Conversation {
  OrderedJson messages = OrderedJson::array(), tools;
};
Conversation read_conversation(const std::string& file);

// Rows of a JSON lines file (or list, Parquet, CSV), each with prompt, prompt_ids or messages (and tools); other keys
// are copied to its answer. usual: all but the prompt, and the first row's seed, incremented per row. UserErrors with
// the first unusable rows.
std::vector<PromptRow> read_prompt_rows(const std::string& file, const ModelWords& words,
                                        const GenerationRequest& usual, const ModelConfig& model);

// Writes the rows with answer, finish_reason ("stop" or "length"), prompt_tokens and completion_tokens, in their order,
// to `output` or standard output; with ids instead of texts where there is no tokenizer. Every rank of the model
// calls it; the one with is_speaker writes. Returns the number of new tokens.
int64_t answer_rows(TextBatch& batch, const std::vector<PromptRow>& rows, const ModelWords& words,
                    const std::vector<std::string>& stop_texts, const std::optional<std::string>& output,
                    bool is_speaker, Logger& log);

}  // namespace megalith
