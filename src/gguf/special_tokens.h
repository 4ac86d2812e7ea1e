// Special ids, the tokens added to every text, and chat templates, as GGUF's keys.
#pragma once

#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gguf/gguf_file.h"
#include "gguf/vocabulary.h"

namespace megalith {

// The kinds that tokenizer_config.json names.
inline constexpr const char* kGgufSpecialKinds[] = {"bos", "eos", "unk", "sep", "pad", "cls", "mask"};

// The text of a kind's token in tokenizer_config.json (or null); "" if none.
std::string special_token_text(const Json& config, const std::string& kind);

class GgufSpecialTokens {
 public:
  // From tokenizer_config.json, the post-processor in `tokenizer` (tokenizer.json; null without one) and config.json.
  //   num_tokens  ids from here on are left out; by default those of more than 32 bits
  GgufSpecialTokens(const GgufTokenizerFiles& files, const Json* tokenizer, const Json& config,
                    int64_t num_tokens = int64_t{1} << 32);

  // The first id of a kind counts.
  void set(const std::string& kind, int64_t id);
  void write(GgufKeys& keys) const;

 private:
  void read_templates(const Json& single, const Json& pair);
  void read_post_processor(const Json& processor);
  void read_chat_template(const std::filesystem::path& folder);
  void read_lowering(const Json& normalizer);
  std::string named(const std::string& kind) const { return special_token_text(config_, kind); }
  void name(const std::string& kind, const std::string& token) { config_[kind + "_token"] = token; }
  void add(const std::string& kind, bool is_added);

  Json config_;  // tokenizer_config.json; null without one
  int64_t num_tokens_;
  std::vector<std::string> kinds_ =
      std::vector<std::string>(std::begin(kGgufSpecialKinds), std::end(kGgufSpecialKinds));
  std::vector<std::pair<std::string, int64_t>> ids_;
  std::vector<std::pair<std::string, bool>> added_;
  std::vector<std::pair<std::string, std::string>> templates_;  // "default" and others
  std::optional<bool> lowers_, strips_accents_;
};

}  // namespace megalith
