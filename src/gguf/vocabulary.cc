#include "gguf/vocabulary.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"
#include "gguf/pre_tokenizer.h"
#include "gguf/special_tokens.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/vocab_files.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// GGUF's numbers, which are SentencePiece's.
enum class TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// For tokens without a score in SentencePiece.
constexpr float kHole = -10000, kAdded = -1000;

struct Tokens {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;

  // Holes of a vocabulary.
  explicit Tokens(int64_t count)
      : scores(static_cast<size_t>(count), kHole),
        types(static_cast<size_t>(count), static_cast<int32_t>(TokenType::kUnused)) {
    for (int64_t i = 0; i < count; ++i) texts.push_back(fmt::format("[PAD{}]", i));
  }
  void set(int64_t id, std::string text, float score, TokenType type) {
    const auto at = static_cast<size_t>(id);
    texts[at] = std::move(text);
    scores[at] = score;
    types[at] = static_cast<int32_t>(type);
  }
  int64_t size() const { return static_cast<int64_t>(texts.size()); }
};

// Files mark some of these as ordinary tokens.
bool looks_special(std::string_view text) {
  const auto is_between = [&](std::string_view begin, std::string_view end) {
    return text.starts_with(begin) && text.ends_with(end);
  };
  return text == "<pad>" || text == "<mask>" || text == "<2mass>" || text == "[@BOS@]" || is_between("<|", "|>") ||
         is_between("<｜", "｜>") || is_between("<unused", ">");
}

// SentencePiece's blanks as blanks.
std::string with_blanks(std::string text) {
  constexpr std::string_view kBlank = "▁";
  for (size_t at = text.find(kBlank); at != std::string::npos; at = text.find(kBlank, at)) {
    text.replace(at, kBlank.size(), " ");
  }
  return text;
}

void set_added(Tokens& tokens, int64_t id, const std::string& text, bool is_special) {
  if (is_special || looks_special(text)) {
    tokens.set(id, text, kAdded, TokenType::kControl);
  } else {
    tokens.set(id, with_blanks(text), kAdded, TokenType::kUserDefined);
  }
}

// visit(id, entry) of what tokenizer_config.json (or null) lists.
template <typename Visit>
void for_each_configured_token(const Json& config, const Visit& visit) {
  if (config.is_null()) return;
  const Json* list = find_member(config, "added_tokens_decoder", "tokenizer_config.json");
  if (list == nullptr) return;
  for (const auto& [key, entry] : list->items()) {
    const std::optional<int64_t> id = try_whole_number(parse_json(key, "tokenizer_config.json: added_tokens_decoder"));
    if (id && *id >= 0) visit(*id, entry);
  }
}

// vocab.json and merges.txt in the form of a tokenizer.json.
Json json_of_files(const GgufTokenizerFiles& files) {
  Json merges = Json::array();
  const std::string text = read_file(*files.merges);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line(trim(text.substr(begin, end - begin)));
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
    begin = end + 1;
  }
  Json json = {{"model", {{"type", "BPE"}, {"vocab", load_json(*files.vocab)}, {"merges", merges}}},
               {"added_tokens", Json::array()}};
  // Other classes cut otherwise: they are known by their ids only.
  const Json settings = files.config();
  if (settings.is_null() ||
      json_get_or<std::string>(settings, "tokenizer_class", "GPT2", "tokenizer_config.json").starts_with("GPT2")) {
    json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"use_regex", true}};
  }
  const Json& vocabulary = json["model"]["vocab"];
  constexpr const char* kEnd = "<|endoftext|>";
  if (const Json* id = find_member(vocabulary, kEnd, files.vocab->string())) {
    json["added_tokens"].push_back({{"id", *id}, {"content", kEnd}, {"special", true}});
  }
  return json;
}

// Merges as "a b". A blank within one is spelled as byte-level vocabularies spell it.
std::vector<std::string> merges_of(const Json& model, const std::string& where) {
  std::vector<std::string> merges;
  for (const Json& merge : get_member(model, "merges", where)) {
    if (const std::string* text = try_text(merge)) {
      merges.push_back(*text);
      continue;
    }
    auto parts = json_as<std::vector<std::string>>(merge, where);
    for (std::string& part : parts) {
      for (size_t at = part.find(' '); at != std::string::npos; at = part.find(' ', at)) part.replace(at, 1, "Ġ");
    }
    merges.push_back(join(parts, " "));
  }
  return merges;
}

struct JsonVocabulary {
  std::map<int64_t, std::string> texts;                   // of the model and added
  std::map<int64_t, std::pair<std::string, bool>> added;  // text, is special
  int64_t num_of_model = 0;
};

// UserError for an id outside vocab_size.
JsonVocabulary read_vocabulary(const Json& tokenizer, const Json& config, const std::string& where,
                               int64_t vocab_size) {
  JsonVocabulary result;
  for (const auto& [text, id] : get_member(get_member(tokenizer, "model", where), "vocab", where).items()) {
    result.texts.emplace(json_as<int64_t>(id, where), text);
    ++result.num_of_model;
  }
  const auto add = [&](int64_t id, const Json& entry) {
    const auto text = json_get<std::string>(entry, "content", where);
    result.added.try_emplace(id, text, json_get_or(entry, "special", false, where));
    result.texts.insert_or_assign(id, text);
  };
  if (const Json* added = find_member(tokenizer, "added_tokens", where)) {
    for (const Json& entry : *added) add(json_get<int64_t>(entry, "id", where), entry);
  }
  for_each_configured_token(config, [&](int64_t id, const Json& entry) {
    if (!result.added.contains(id)) add(id, entry);
  });
  if (result.texts.empty()) return result;
  const int64_t least = result.texts.begin()->first, most = result.texts.rbegin()->first;
  if (least >= 0 && most < vocab_size) return result;
  throw UserError(fmt::format("{}: a token has the id {}, and the model's vocab_size is {}", where,
                              least < 0 ? least : most, vocab_size),
                  "name the model's own tokenizer with --tokenizer_model");
}

void set_tokens(const Tokens& tokens, bool has_scores, GgufKeys& keys) {
  keys.set("tokenizer.ggml.tokens", tokens.texts);
  if (has_scores) keys.set("tokenizer.ggml.scores", tokens.scores);
  keys.set("tokenizer.ggml.token_type", tokens.types);
}

// json: tokenizer.json; null without one
void set_byte_level(const GgufArchitecture& architecture, const GgufTokenizerFiles& files, const Json& json,
                    const Json& config, int64_t vocab_size, GgufKeys& keys) {
  if (!files.json && !(files.vocab && files.merges)) {
    throw UserError(fmt::format("{} has no tokenizer.json, which GGUF's {} needs", files.folder.string(),
                                architecture.name),
                    "name a folder that has it with --tokenizer_model");
  }
  const std::string where = (files.json ? *files.json : *files.vocab).string();
  const Json made = files.json ? Json(nullptr) : json_of_files(files);
  const Json& tokenizer = files.json ? json : made;
  const Json& model = get_member(tokenizer, "model", where);
  if (!model.contains("merges")) {
    throw UserError(fmt::format("{}: a tokenizer of type {} has no form in GGUF here", where,
                                json_get_or<std::string>(model, "type", "unknown", where)),
                    "models with byte-level BPE or a SentencePiece model can become GGUF");
  }
  const JsonVocabulary vocabulary = read_vocabulary(tokenizer, files.config(), where, vocab_size);
  Tokens tokens(vocab_size);
  for (const auto& [id, text] : vocabulary.texts) tokens.set(id, text, 0, TokenType::kNormal);
  for (const auto& [id, added] : vocabulary.added) set_added(tokens, id, added.first, added.second);
  const auto no_special_ids = [](const TokenFinder&) { return SpecialIds(); };
  const auto encoder = files.json             ? make_json_tokenizer(tokenizer, where, no_special_ids)
                       : files.folder.empty() ? load_gpt2_files(*files.vocab, *files.merges)
                                              : load_byte_level_folder(files.folder);
  keys.set("tokenizer.ggml.model", "gpt2");
  keys.set("tokenizer.ggml.pre", gguf_pre_tokenizer(*encoder, tokenizer, where));
  set_tokens(tokens, false, keys);
  keys.set("tokenizer.ggml.merges", merges_of(model, where));
  GgufSpecialTokens special(files, files.json ? &tokenizer : nullptr, config);
  if (architecture.vocabulary == GgufVocabulary::kGlm) {
    const std::pair<const char*, const char*> kTurns[] = {
        {"bos", "[gMASK]"}, {"eot", "<|user|>"}, {"unk", "<|endoftext|>"}, {"eom", "<|observation|>"}};
    for (const auto& [kind, text] : kTurns) {
      for (const auto& [id, added] : vocabulary.added) {
        if (added.first == text) special.set(kind, id);
      }
    }
  }
  special.write(keys);
}

void set_sentencepiece(const GgufTokenizerFiles& files, const Json& json, const Json& config, int64_t vocab_size,
                       GgufKeys& keys) {
  Tokens tokens(vocab_size);
  const SentencePieceModel model = load_sentencepiece_model(*files.sentencepiece);
  for (int64_t id = 0; id < std::min(vocab_size, std::ssize(model.pieces)); ++id) {
    const SentencePiece& piece = model.pieces[static_cast<size_t>(id)];
    const bool is_defined = piece.type == SentencePiece::Type::kUserDefined;
    tokens.set(id, piece.text, piece.score, is_defined ? TokenType::kNormal : static_cast<TokenType>(piece.type));
  }
  if (const fs::path file = files.folder / "added_tokens.json"; fs::exists(file)) {
    const Json added = load_json(file);
    for (const auto& [text, value] : added.items()) {
      const auto id = json_as<int64_t>(value, file.string());
      if (id >= 0 && id < vocab_size) tokens.set(id, text, kAdded, TokenType::kUserDefined);
    }
  }
  for_each_configured_token(files.config(), [&](int64_t id, const Json& entry) {
    if (id >= vocab_size) return;
    set_added(tokens, id, json_get<std::string>(entry, "content", "tokenizer_config.json"),
              json_get_or(entry, "special", false, "tokenizer_config.json"));
  });
  keys.set("tokenizer.ggml.model", "llama");
  keys.set("tokenizer.ggml.pre", "default");
  set_tokens(tokens, true, keys);
  GgufSpecialTokens(files, files.json ? &json : nullptr, config, tokens.size()).write(keys);
}

// A tokenizer.json of what was a SentencePiece model: pieces without their scores.
bool is_of_pieces(const Json& tokenizer, const std::string& where) {
  const Json& model = get_member(tokenizer, "model", where);
  const Json* decoder = find_member(tokenizer, "decoder", where);
  return json_get_or<std::string>(model, "type", "", where) == "BPE" &&
         json_get_or(model, "byte_fallback", false, where) && decoder != nullptr &&
         json_get_or<std::string>(*decoder, "type", "", where) == "Sequence";
}

void set_pieces(const GgufTokenizerFiles& files, const Json& tokenizer, const Json& config, int64_t vocab_size,
                GgufKeys& keys) {
  const std::string where = files.json->string();
  const Json names = files.config();
  const JsonVocabulary vocabulary = read_vocabulary(tokenizer, names, where, vocab_size);
  std::set<std::string> special;
  for (const char* kind : kGgufSpecialKinds) special.insert(special_token_text(names, kind));
  special.erase("");
  // llama.cpp takes as many tokens as the embedding has rows; its converter leaves padding out.
  Tokens tokens(vocab_size);
  for (const auto& [id, text] : vocabulary.texts) {
    const bool is_byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
    const TokenType otherwise = id >= vocabulary.num_of_model ? TokenType::kUserDefined : TokenType::kNormal;
    tokens.set(id, text, kAdded, is_byte ? TokenType::kByte : special.contains(text) ? TokenType::kControl : otherwise);
  }
  keys.set("tokenizer.ggml.model", "llama");
  keys.set("tokenizer.ggml.pre", "default");
  set_tokens(tokens, true, keys);
  GgufSpecialTokens(files, &tokenizer, config, tokens.size()).write(keys);
}

}  // namespace

GgufTokenizerFiles GgufTokenizerFiles::find(const fs::path& path) {
  GgufTokenizerFiles files;
  const auto take = [](const fs::path& file, std::optional<fs::path>& into) {
    if (fs::is_regular_file(file)) into = file;
  };
  if (fs::is_directory(path)) {
    files.folder = path;
    take(path / "tokenizer.json", files.json);
    take(path / "tokenizer.model", files.sentencepiece);
    take(path / "vocab.json", files.vocab);
    take(path / "merges.txt", files.merges);
  } else {
    files.folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    take(path, path.extension() == ".json" ? files.json : files.sentencepiece);
  }
  if (files.sentencepiece && !is_sentencepiece_file(*files.sentencepiece)) files.sentencepiece.reset();
  return files;
}

Json GgufTokenizerFiles::config() const {
  const fs::path file = folder / "tokenizer_config.json";
  return !folder.empty() && fs::exists(file) ? load_json(file) : Json(nullptr);
}

void set_gguf_vocabulary(const GgufArchitecture& architecture, const GgufTokenizerFiles& files, const Json& config,
                         GgufKeys& keys) {
  const auto vocab_size = json_get<int64_t>(config, "vocab_size", "config.json");
  const bool is_llama = architecture.vocabulary == GgufVocabulary::kLlama;
  if (is_llama) {
    const Json names = files.config();
    const auto prefix = names.find("add_prefix_space");
    if (prefix != names.end() && prefix->is_boolean()) keys.set("tokenizer.ggml.add_space_prefix", *prefix == true);
  }
  const bool takes_pieces = architecture.vocabulary == GgufVocabulary::kSentencePiece || is_llama ||
                            architecture.vocabulary == GgufVocabulary::kGemma;
  const Json tokenizer = files.json ? load_json(*files.json) : Json(nullptr);
  if (takes_pieces && files.sentencepiece) {
    set_sentencepiece(files, tokenizer, config, vocab_size, keys);
    if (architecture.vocabulary == GgufVocabulary::kGemma) keys.set("tokenizer.ggml.add_space_prefix", false);
  } else if (is_llama && files.json && is_of_pieces(tokenizer, files.json->string())) {
    set_pieces(files, tokenizer, config, vocab_size, keys);
  } else {
    set_byte_level(architecture, files, tokenizer, config, vocab_size, keys);
  }
  // Code Llama's and Granite's small models, which llama.cpp's converter knows by this size.
  if (is_llama && vocab_size == 32016) keys.set("tokenizer.ggml.eot_token_id", uint32_t{32010});
  if (is_llama && vocab_size == 49152) keys.set("tokenizer.ggml.add_bos_token", false);
}

}  // namespace megalith
