#include "tokenizer/tiktoken.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base64.h"
#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/json.h"
#include "tokenizer/pipeline_tokenizer.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// Llama 4's 2048 special tokens: named ones, and reserved ones numbered within their group.
std::vector<std::string> llama4_special_tokens() {
  std::vector<std::string> tokens = {"<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>",
                                     "<|fim_suffix|>"};
  const auto reserve = [&](const char* group, int first, int end) {
    for (int i = first; i < end; ++i) tokens.push_back(fmt::format("<|{}reserved_special_token_{}|>", group, i));
  };
  const auto name = [&](std::initializer_list<const char*> names) {
    tokens.insert(tokens.end(), names.begin(), names.end());
  };
  name({"<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"});
  reserve("text_post_train_", 0, 6);
  name({"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"});
  reserve("text_post_train_", 8, 69);
  name({"<|image_start|>", "<|image_end|>"});
  reserve("vision_", 0, 2);
  name({"<|tile_x_separator|>", "<|tile_y_separator|>"});
  reserve("vision_", 2, 6);
  name({"<|image|>"});
  reserve("vision_", 6, 7);
  name({"<|patch|>"});
  reserve("vision_", 7, 1048);
  reserve("reasoning_", 0, 8);
  name({"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"});
  reserve("", 0, 2048 - static_cast<int>(tokens.size()));
  return tokens;
}

// Lines "base64 rank", ranks counting up from 0.
std::vector<std::string> read_rank_lines(const fs::path& file) {
  const MappedFile mapped(file, MappedFile::Access::kSequential);
  const std::string_view text = mapped.text();
  std::vector<std::string> tokens;
  std::set<std::string> seen;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", file.string(), line_number);
    const size_t blank = line.find(' ');
    const std::string_view number = blank == std::string_view::npos ? std::string_view() : line.substr(blank + 1);
    int64_t rank = -1;
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (error != std::errc{} || stop != number.data() + number.size()) {
      throw UserError(fmt::format("{}: not a token in base64 and its rank", where));
    }
    if (rank != static_cast<int64_t>(tokens.size())) {
      throw UserError(fmt::format("{}: rank {} where {} comes next", where, rank, tokens.size()));
    }
    tokens.push_back(decode_base64(line.substr(0, blank), where));
    if (!seen.insert(tokens.back()).second) throw UserError(fmt::format("{}: this token was there before", where));
  }
  return tokens;
}

// A list of {"rank", "token_bytes", "token_str"}, ranks counting up from 0; the first `most` of them.
std::vector<std::string> read_rank_list(const Json& list, int64_t most, std::string_view where) {
  if (!list.is_array()) throw UserError(fmt::format("{}: the vocabulary is not a list", where));
  std::vector<std::string> tokens;
  std::set<std::string> seen;
  for (size_t i = 0; i < list.size() && static_cast<int64_t>(i) < most; ++i) {
    const std::string what = fmt::format("{}: token {}", where, i);
    const auto rank = json_get<int64_t>(list[i], "rank", what);
    if (rank != static_cast<int64_t>(i)) throw UserError(fmt::format("{} has rank {}", what, rank));
    tokens.push_back(decode_base64(json_get<std::string>(list[i], "token_bytes", what), what));
    if (!seen.insert(tokens.back()).second) throw UserError(fmt::format("{} was there before", what));
  }
  return tokens;
}

struct RankVocabulary {
  std::vector<std::string> tokens;
  int32_t first_id = 0;
  std::vector<std::string> special_tokens;  // from id first_special on
  int32_t first_special = 0;
  bool finds_special = false;
  std::string bos, eod, pad;
};

std::unique_ptr<Tokenizer> make_rank_tokenizer(RankVocabulary vocabulary, std::string_view pattern,
                                               const std::string& where) {
  PipelineTokenizer::Parts parts;
  parts.name = where;
  parts.finds_added = vocabulary.finds_special;
  parts.pre_tokenizer = make_pattern_split(pattern, where);
  parts.is_byte_level = true;
  parts.decodes_bytes = true;
  parts.model = make_rank_bpe(vocabulary.tokens, vocabulary.first_id, where);
  for (size_t i = 0; i < vocabulary.special_tokens.size(); ++i) {
    const int32_t id = vocabulary.first_special + narrow<int32_t>(i);
    const std::string& content = vocabulary.special_tokens[i];
    parts.added.push_back({.id = id, .content = content, .special = true});
    if (content == vocabulary.bos) parts.special.bos = id;
    if (content == vocabulary.eod) parts.special.eod = id;
    if (content == vocabulary.pad) parts.special.pad = id;
  }
  if (parts.special.bos) parts.frame.before = {*parts.special.bos};
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

void fill_special_tokens(std::vector<std::string>& tokens, int64_t count) {
  while (static_cast<int64_t>(tokens.size()) < count) tokens.push_back(fmt::format("<SPECIAL_{}>", tokens.size()));
}

void require_different(const std::vector<std::string>& tokens, std::string_view where) {
  std::set<std::string> seen;
  for (const std::string& token : tokens) {
    if (!seen.insert(token).second) throw UserError(fmt::format("{}: two special tokens are \"{}\"", where, token));
  }
}

// The first bytes of a file. Empty if it is missing: the loader reports that.
std::string beginning(const fs::path& file, size_t most) { return fs::exists(file) ? read_beginning(file, most) : ""; }

}  // namespace

bool is_tiktoken_file(const fs::path& file) {
  const std::string text = beginning(file, 256);
  const size_t blank = text.find(' ');
  if (blank == std::string::npos || blank == 0 || text.substr(blank, 2) != " 0") return false;
  return std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(blank), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/' ||
           c == '=';
  });
}

bool is_tekken_file(const fs::path& file) {
  const std::string text = beginning(file, 4096);
  return text.starts_with('{') && text.find("\"default_num_special_tokens\"") != std::string::npos;
}

std::unique_ptr<Tokenizer> load_llama_tiktoken(const fs::path& file) {
  RankVocabulary vocabulary{.tokens = read_rank_lines(file),
                            .finds_special = true,
                            .bos = "<|begin_of_text|>",
                            .eod = "<|end_of_text|>",
                            .pad = "<|finetune_right_pad_id|>"};
  vocabulary.first_special = narrow<int32_t>(vocabulary.tokens.size());
  constexpr size_t kLlama4Tokens = 200'000;  // Llama 3 has 128000
  if (vocabulary.tokens.size() >= kLlama4Tokens) {
    vocabulary.special_tokens = llama4_special_tokens();
    vocabulary.pad = "<|finetune_right_pad|>";
    return make_rank_tokenizer(std::move(vocabulary), kO200kPattern, file.string());
  }
  vocabulary.special_tokens = {"<|begin_of_text|>",
                               "<|end_of_text|>",
                               "<|reserved_special_token_0|>",
                               "<|reserved_special_token_1|>",
                               "<|finetune_right_pad_id|>",
                               "<|step_id|>",
                               "<|start_header_id|>",
                               "<|end_header_id|>",
                               "<|eom_id|>",
                               "<|eot_id|>",
                               "<|python_tag|>",
                               "<|image|>"};
  for (int i = 2; vocabulary.special_tokens.size() < 256; ++i) {
    vocabulary.special_tokens.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  }
  return make_rank_tokenizer(std::move(vocabulary), kLlama3Pattern, file.string());
}

std::unique_ptr<Tokenizer> load_tekken(const fs::path& file) {
  const std::string where = file.string();
  const Json root = load_json(file);
  const Json& config = get_member(root, "config", where);
  const auto num_special = json_get<int64_t>(config, "default_num_special_tokens", where);
  const auto vocab_size = json_get<int64_t>(config, "default_vocab_size", where);
  if (num_special < 0 || vocab_size <= num_special || vocab_size >= kMaxTokenId) {
    throw UserError(fmt::format("{}: a vocabulary of {} with {} special tokens", where, vocab_size, num_special));
  }
  RankVocabulary vocabulary{.bos = "<s>", .eod = "</s>", .pad = "<pad>"};
  vocabulary.tokens = read_rank_list(get_member(root, "vocab", where), vocab_size - num_special, where);
  vocabulary.first_id = static_cast<int32_t>(num_special);
  if (const Json* list = find_member(root, "special_tokens", where)) {
    if (!list->is_array()) throw UserError(fmt::format("{}: \"special_tokens\" is not a list", where));
    for (const Json& entry : *list) {
      const auto rank = json_get<int64_t>(entry, "rank", where);
      if (rank != static_cast<int64_t>(vocabulary.special_tokens.size())) {
        throw UserError(fmt::format("{}: special token {} has rank {}", where, vocabulary.special_tokens.size(), rank));
      }
      vocabulary.special_tokens.push_back(json_get<std::string>(entry, "token_str", where));
    }
  } else {
    // Files from before special tokens were listed.
    vocabulary.special_tokens = {"<unk>",
                                 "<s>",
                                 "</s>",
                                 "[INST]",
                                 "[/INST]",
                                 "[AVAILABLE_TOOLS]",
                                 "[/AVAILABLE_TOOLS]",
                                 "[TOOL_RESULTS]",
                                 "[/TOOL_RESULTS]",
                                 "[TOOL_CALLS]",
                                 "[IMG]",
                                 "<pad>",
                                 "[IMG_BREAK]",
                                 "[IMG_END]",
                                 "[PREFIX]",
                                 "[MIDDLE]",
                                 "[SUFFIX]"};
  }
  if (static_cast<int64_t>(vocabulary.special_tokens.size()) > num_special) {
    throw UserError(
        fmt::format("{}: {} special tokens where {} have room", where, vocabulary.special_tokens.size(), num_special));
  }
  fill_special_tokens(vocabulary.special_tokens, num_special);
  return make_rank_tokenizer(std::move(vocabulary), json_get<std::string>(config, "pattern", where), where);
}

std::unique_ptr<Tokenizer> load_tiktoken_vocabulary(const fs::path& file, const TiktokenOptions& options) {
  const std::string where = file.string();
  RankVocabulary vocabulary{.bos = "<s>", .eod = "</s>"};
  vocabulary.special_tokens = options.special_tokens;
  const std::vector<std::string> required = {"<unk>", "<s>", "</s>"};
  if (vocabulary.special_tokens.empty()) vocabulary.special_tokens = required;
  for (const std::string& token : required) {
    if (std::find(vocabulary.special_tokens.begin(), vocabulary.special_tokens.end(), token) ==
        vocabulary.special_tokens.end()) {
      throw UserError(fmt::format("tiktoken_special_tokens leaves out {}", token), "it must be among them");
    }
  }
  require_different(vocabulary.special_tokens, "tiktoken_special_tokens");
  constexpr int64_t kUsualSize = 1 << 17;
  const int64_t vocab_size = options.vocab_size.value_or(kUsualSize);
  if (static_cast<int64_t>(vocabulary.special_tokens.size()) > options.num_special_tokens ||
      options.num_special_tokens >= vocab_size || vocab_size >= kMaxTokenId) {
    throw UserError(fmt::format("{} special tokens, tiktoken_num_special_tokens {} and vocab_size {} do not fit",
                                vocabulary.special_tokens.size(), options.num_special_tokens, vocab_size),
                    "each must be less than the next");
  }
  fill_special_tokens(vocabulary.special_tokens, options.num_special_tokens);
  vocabulary.first_id = narrow<int32_t>(options.num_special_tokens);
  vocabulary.tokens =
      is_tiktoken_file(file) ? read_rank_lines(file) : read_rank_list(load_json(file), kMaxTokenId, where);
  const int64_t room = vocab_size - options.num_special_tokens;
  if (static_cast<int64_t>(vocabulary.tokens.size()) > room) vocabulary.tokens.resize(static_cast<size_t>(room));
  return make_rank_tokenizer(std::move(vocabulary), options.pattern == "v1" ? kLlama3Pattern : kTekkenPattern, where);
}

}  // namespace megalith
