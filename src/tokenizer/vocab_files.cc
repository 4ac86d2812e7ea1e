// Reads GPT-2's and BERT's files as the equivalent tokenizer.json; see vocab_files.h.
#include "tokenizer/vocab_files.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/special_ids.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// The lines of a file, without line ends; `where` is the file's name and the line number.
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

// The tokenizer's class without a trailing "Fast".
std::string class_of(const fs::path& folder, const Json& settings, const std::string& where) {
  std::optional<std::string> name = json_find<std::string>(settings, "tokenizer_class", where);
  if (const fs::path path = folder / "config.json"; !name && fs::exists(path)) {
    const Json config = load_json(path);
    name = json_find<std::string>(config, "tokenizer_class", path.string());
    const auto model_type = json_find<std::string>(config, "model_type", path.string());
    constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
        {"gpt2", "GPT2Tokenizer"},       {"gptj", "GPT2Tokenizer"},   {"gpt_neo", "GPT2Tokenizer"},
        {"qwen2", "Qwen2Tokenizer"},     {"qwen3", "Qwen2Tokenizer"}, {"qwen2_moe", "Qwen2Tokenizer"},
        {"qwen3_moe", "Qwen2Tokenizer"}, {"clip", "CLIPTokenizer"},    {"clip_text_model", "CLIPTokenizer"},
    };
    for (const auto& [type, tokenizer] : kClasses) {
      if (!name && model_type == type) name = tokenizer;
    }
  }
  std::string found = name.value_or("");
  if (found.ends_with("Fast")) found.resize(found.size() - 4);
  if (found == "GPT2Tokenizer" || found == "Qwen2Tokenizer" || found == "CLIPTokenizer") return found;
  throw UserError(
      found.empty()
          ? fmt::format("{} has vocab.json and merges.txt, but nothing says how they cut a text", folder.string())
          : fmt::format("{} has vocab.json and merges.txt of a {}, which is read only from a tokenizer.json",
                        folder.string(), found),
      "transformers makes one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER); or name the class "
      "GPT2Tokenizer, Qwen2Tokenizer or CLIPTokenizer as \"tokenizer_class\" in tokenizer_config.json");
}

// {"content": …, flags} of a special token, given as a text or an object; nothing for null.
std::optional<Json> token_entry(const Json* value, bool normalized) {
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (value->is_object()) return *value;
  return Json{{"content", *value}, {"special", true}, {"normalized", normalized}};
}

// The tokens that AutoTokenizer adds, with their ids: those of added_tokens_decoder by id, then the special ones.
// Tokens in the vocabulary keep their id, the others get the next ones.
Json added_tokens_of(const Json& settings, const Json& special_map, const Json& defaults, const Json& vocab,
                     const std::string& where) {
  const bool normalized = json_get<bool>(defaults, "normalized", where);
  Json added = Json::array();
  auto next_id = static_cast<int64_t>(vocab.size());
  std::set<std::string> known;
  const auto add = [&](std::optional<Json> entry) {
    if (!entry) return;
    const auto content = json_get<std::string>(*entry, "content", where);
    if (content.empty() || !known.insert(content).second) return;
    const auto found = vocab.find(content);
    (*entry)["id"] = found == vocab.end() ? Json(next_id++) : *found;
    added.push_back(std::move(*entry));
  };
  if (const Json* decoder = find_member(settings, "added_tokens_decoder", where)) {
    std::map<int64_t, const Json*> by_id;
    if (!decoder->is_object()) throw UserError(fmt::format("{}: \"added_tokens_decoder\" is not an object", where));
    for (const auto& [id, entry] : decoder->items()) {
      int64_t number = 0;
      if (std::from_chars(id.data(), id.data() + id.size(), number).ptr != id.data() + id.size()) {
        throw UserError(fmt::format("{}: \"added_tokens_decoder\" has \"{}\" in the place of an id", where, id));
      }
      by_id[number] = &entry;
    }
    for (const auto& [id, entry] : by_id) add(token_entry(entry, normalized));
  }
  const auto chosen = [&](const char* key) -> const Json* {
    for (const Json* from : {&settings, &special_map, &defaults}) {
      if (from->is_object() && from->contains(key)) return &from->at(key);
    }
    return nullptr;
  };
  const auto add_special = [&](const Json* value) {
    std::optional<Json> entry = token_entry(value, normalized);
    if (entry) (*entry)["special"] = true;
    add(std::move(entry));
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    add_special(chosen(key));
  }
  if (const Json* more = chosen("additional_special_tokens"); more != nullptr && more->is_array()) {
    for (const Json& token : *more) add_special(&token);
  }
  return added;
}

Json load_json_if_there(const fs::path& path) { return fs::exists(path) ? load_json(path) : Json::object(); }

// The class's own special tokens.
Json defaults_of(const std::string& name) {
  const char* const end = "<|endoftext|>";
  if (name == "GPT2Tokenizer") {
    return {{"normalized", true}, {"bos_token", end}, {"eos_token", end}, {"unk_token", end}};
  }
  Json defaults = {{"normalized", name == "CLIPTokenizer"}, {"eos_token", end}, {"unk_token", end}, {"pad_token", end}};
  if (name == "CLIPTokenizer") defaults["bos_token"] = "<|startoftext|>";
  return defaults;
}

// Cuts a text with a pattern, and spells the parts' bytes.
//   keeps_matches  keeps only what the pattern finds, cut again by GPT-2's pattern; else keeps everything
Json split_and_bytes(std::string_view pattern, bool keeps_matches) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", pattern}}},
             {"behavior", keeps_matches ? "Removed" : "Isolated"},
             {"invert", keeps_matches}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", keeps_matches}}}}};
}

}  // namespace

std::unique_ptr<Tokenizer> load_byte_level_folder(const fs::path& folder) {
  const std::string where = (folder / "tokenizer_config.json").string();
  const Json settings = load_json_if_there(folder / "tokenizer_config.json");
  const std::string name = class_of(folder, settings, where);
  if (fs::exists(folder / "added_tokens.json") && find_member(settings, "added_tokens_decoder", where) == nullptr) {
    throw UserError(fmt::format("{} has an added_tokens.json of older versions of transformers", folder.string()),
                    "save it anew: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)");
  }
  Json vocab = load_json(folder / "vocab.json");
  if (!vocab.is_object()) throw UserError(fmt::format("{}: not an object", (folder / "vocab.json").string()));
  const Json defaults = defaults_of(name), special_map = load_json_if_there(folder / "special_tokens_map.json");
  Json added = added_tokens_of(settings, special_map, defaults, vocab, where);
  // Content and id of a token that the class puts around a text.
  const auto framing = [&](const char* key) -> std::pair<std::string, int64_t> {
    const Json* value = &defaults.at(key);
    if (special_map.contains(key)) value = &special_map.at(key);
    if (settings.contains(key)) value = &settings.at(key);
    const std::optional<Json> entry = token_entry(value, true);
    if (!entry) throw UserError(fmt::format("{}: texts of a {} need a {}", where, name, key));
    const auto content = json_get<std::string>(*entry, "content", where);
    for (const Json& token : added) {
      if (token.at("content") == content) return {content, json_as<int64_t>(token.at("id"), content)};
    }
    throw UserError(fmt::format("{}: {} is \"{}\", which is no token", where, key, content));
  };
  Json root = {{"model", {{"type", "BPE"}, {"merges", read_merge_lines(folder / "merges.txt")}}},
               {"decoder", {{"type", "ByteLevel"}}}};
  if (name == "GPT2Tokenizer") {
    const bool has_prefix = json_get_or(settings, "add_prefix_space", false, where);
    root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", has_prefix}, {"use_regex", true}};
    if (json_get_or(settings, "add_bos_token", false, where)) {
      const auto [bos, id] = framing("bos_token");
      root["post_processor"] = {
          {"type", "TemplateProcessing"},
          {"single", {{{"SpecialToken", {{"id", bos}}}}, {{"Sequence", {{"id", "A"}}}}}},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", Json::array({id})}, {"tokens", Json::array({bos})}}}}}};
    }
  } else if (name == "CLIPTokenizer") {
    const auto [bos, bos_id] = framing("bos_token");
    const auto [eos, eos_id] = framing("eos_token");
    const auto [unk, unk_id] = framing("unk_token");
    root["normalizer"] = {
        {"type", "Sequence"},
        {"normalizers",
         {{{"type", "NFC"}},
          {{"type", "Replace"}, {"pattern", {{"Regex", R"(\s+)"}}}, {"content", " "}},
          {{"type", "Lowercase"}}}}};
    root["pre_tokenizer"] = split_and_bytes(
        R"(<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)",
        /*keeps_matches=*/true);
    root["model"]["unk_token"] = unk;
    root["model"]["end_of_word_suffix"] = "</w>";
    root["post_processor"] = {{"type", "RobertaProcessing"},
                              {"cls", Json::array({bos, bos_id})},
                              {"sep", Json::array({eos, eos_id})}};
  } else {
    root["normalizer"] = {{"type", "NFC"}};
    root["pre_tokenizer"] = split_and_bytes(kQwen2Pattern, /*keeps_matches=*/false);
  }
  root["model"]["vocab"] = std::move(vocab);
  root["added_tokens"] = std::move(added);
  return make_json_tokenizer(root, folder.string(),
                             [&](const TokenFinder& find) { return find_special_ids(folder, find); });
}

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

Json bert_tokenizer_json(const fs::path& vocab_file, bool lower_case, int64_t num_extra_ids) {
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
  std::string missing;
  for (const char* token : {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"}) {
    if (!vocab.contains(token)) missing += (missing.empty() ? "" : ", ") + std::string(token);
  }
  if (!missing.empty()) {
    throw UserError(fmt::format("{} is not a vocabulary of BERT: it lacks {}", where, missing),
                    "take the vocab.txt that the data was prepared with");
  }
  Json added = Json::array();
  int64_t next_id = num_lines;
  const auto add = [&](const std::string& content) {
    const auto known = json_find<int64_t>(vocab, content, where);
    const int64_t id = known ? *known : next_id++;
    added.push_back({{"id", id},
                     {"content", content},
                     {"special", true},
                     {"normalized", false},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false}});
    return id;
  };
  const auto cls = json_get<int64_t>(vocab, "[CLS]", where), sep = json_get<int64_t>(vocab, "[SEP]", where);
  for (const char* token : {"[BOS]", "[EOS]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"}) add(token);
  for (int64_t i = 0; i < num_extra_ids; ++i) add(fmt::format("<extra_id_{}>", i));
  constexpr int kMostCharacters = 200;  // of a word: Megatron's limit; Hugging Face has 100
  return {
      {"added_tokens", added},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", true},
        {"strip_accents", nullptr},
        {"lowercase", lower_case}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"vocab", std::move(vocab)},
        {"max_input_chars_per_word", kMostCharacters}}},
      {"post_processor", {{"type", "BertProcessing"}, {"cls", {"[CLS]", cls}}, {"sep", {"[SEP]", sep}}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}}};
}

std::unique_ptr<Tokenizer> load_bert_vocabulary(const fs::path& vocab_file, bool lower_case, int64_t num_extra_ids) {
  const Json root = bert_tokenizer_json(vocab_file, lower_case, num_extra_ids);
  return make_json_tokenizer(root, vocab_file.string(), [&](const TokenFinder& find) {
    SpecialIds ids{.eod = find("[EOS]"), .bos = find("[BOS]"), .pad = find("[PAD]")};
    ids.cls = find("[CLS]");
    ids.sep = find("[SEP]");
    ids.mask = find("[MASK]");
    for (int64_t i = 0; i < num_extra_ids; ++i) ids.extra.push_back(*find(fmt::format("<extra_id_{}>", i)));
    return ids;
  });
}

}  // namespace megalith
