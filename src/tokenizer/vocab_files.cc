// GPT-2's and BERT's files, read as the tokenizer.json that says the same; see vocab_files.h.
#include "tokenizer/vocab_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// The lines of a file, without the ends of lines; `where` gets the file's name and the line's number.
template <typename OnLine>
void for_each_line(const fs::path& file, OnLine&& on_line) {
  const MappedFile mapped(file, MappedFile::Access::kSequential);
  const std::string_view text = mapped.text();
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!is_valid_utf8(line)) throw UserError(fmt::format("{}:{}: not valid UTF-8", file.string(), number));
    on_line(line, number);
    begin = end + 1;
  }
}

Json read_merge_lines(const fs::path& file) {
  Json merges = Json::array();
  for_each_line(file, [&](std::string_view line, int64_t number) {
    if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
    const size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos) {
      throw UserError(fmt::format("{}:{}: \"{}\" is not two tokens and a blank", file.string(), number, line));
    }
    merges.push_back(line);
  });
  return merges;
}

}  // namespace

std::unique_ptr<Tokenizer> load_gpt2_files(const fs::path& vocab_file, const fs::path& merge_file) {
  Json vocab = load_json(vocab_file);
  Json merges = read_merge_lines(merge_file);
  const std::string where = vocab_file.string();
  const Json root = {{"model", {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(merges)}}},
                     {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
                     {"decoder", {{"type", "ByteLevel"}}}};
  return make_json_tokenizer(root, where, [&](const TokenFinder& find) {
    SpecialIds ids{.eod = find("<|endoftext|>")};
    if (!ids.eod) throw UserError(fmt::format("{}: the token <|endoftext|> is missing", where));
    return ids;
  });
}

std::unique_ptr<Tokenizer> load_bert_vocabulary(const fs::path& vocab_file, bool lower_case, int64_t num_extra_ids) {
  const std::string where = vocab_file.string();
  Json vocab = Json::object();
  int64_t num_lines = 0;
  for_each_line(vocab_file, [&](std::string_view line, int64_t number) {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
    if (line.empty() || vocab.contains(line)) {
      throw UserError(fmt::format("{}:{}: {}", where, number,
                                  line.empty() ? std::string("an empty line") : fmt::format("\"{}\" again", line)),
                      "a vocabulary has one token a line, each once");
    }
    vocab[std::string(line)] = num_lines++;
  });
  for (const char* token : {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"}) {
    if (!vocab.contains(token)) throw UserError(fmt::format("{}: the token {} is missing", where, token));
  }
  Json added = Json::array();
  int64_t next_id = num_lines;
  const auto add = [&](const std::string& content) {
    const int64_t id = vocab.contains(content) ? vocab[content].get<int64_t>() : next_id++;
    added.push_back({{"id", id}, {"content", content}, {"special", true}, {"normalized", false}});
    return id;
  };
  const int64_t cls = vocab["[CLS]"].get<int64_t>(), sep = vocab["[SEP]"].get<int64_t>();
  for (const char* token : {"[BOS]", "[EOS]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"}) add(token);
  for (int64_t i = 0; i < num_extra_ids; ++i) add(fmt::format("<extra_id_{}>", i));
  constexpr int kMostCharacters = 200;  // of a word: Megatron's, where Hugging Face has 100
  const Json root = {
      {"added_tokens", added},
      {"normalizer",
       {{"type", "BertNormalizer"}, {"clean_text", true}, {"handle_chinese_chars", true}, {"lowercase", lower_case}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"model", {{"type", "WordPiece"}, {"vocab", std::move(vocab)}, {"max_input_chars_per_word", kMostCharacters}}},
      {"post_processor", {{"type", "BertProcessing"}, {"cls", {"[CLS]", cls}}, {"sep", {"[SEP]", sep}}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}}};
  return make_json_tokenizer(root, where, [&](const TokenFinder& find) {
    SpecialIds ids{.eod = find("[EOS]"), .bos = find("[BOS]"), .pad = find("[PAD]")};
    ids.cls = find("[CLS]");
    ids.sep = find("[SEP]");
    ids.mask = find("[MASK]");
    for (int64_t i = 0; i < num_extra_ids; ++i) ids.extra.push_back(*find(fmt::format("<extra_id_{}>", i)));
    return ids;
  });
}

}  // namespace megalith
