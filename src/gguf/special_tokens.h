// Special ids, the tokens added to every text, and chat templates, as GGUF's keys.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gguf/gguf_file.h"
#include "gguf/vocabulary.h"

namespace megalith {

class GgufSpecialTokens {
 public:
  // From tokenizer_config.json, the post-processor in `tokenizer` (tokenizer.json; null without one) and config.json.
  //   num_tokens  ids from here on are left out; unset: none
  GgufSpecialTokens(const GgufTokenizerFiles& files, const Json* tokenizer, const Json& config,
                    std::optional<int64_t> num_tokens = std::nullopt);

  // The first id of a kind counts.
  void set(const std::string& kind, int64_t id);
  void write(GgufKeys& keys) const;

 private:
  void read_templates(const Json& single, const Json& pair);
  void read_post_processor(const Json& processor);
  void read_chat_template();
  void read_lowering(const Json& normalizer);
  // The token's text in tokenizer_config.json; "" if none.
  std::string named(const std::string& kind) const;
  void name(const std::string& kind, const std::string& token) { config_[kind + "_token"] = token; }
  void add(const std::string& kind, bool is_added);

  const GgufTokenizerFiles& files_;
  Json config_ = nullptr;  // tokenizer_config.json
  std::optional<int64_t> num_tokens_;
  std::vector<std::string> kinds_ = {"bos", "eos", "unk", "sep", "pad", "cls", "mask"};
  std::vector<std::pair<std::string, int64_t>> ids_;
  std::vector<std::pair<std::string, bool>> added_;
  std::vector<std::pair<std::string, std::string>> templates_;  // "default" and others
  std::optional<bool> lowers_, strips_accents_;
};

}  // namespace megalith
