#include "tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pipeline_tokenizer.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

std::vector<AddedToken> read_added_tokens(const Json& root, const TokenFinder& find, std::string_view where) {
  std::vector<AddedToken> tokens;
  const Json* list = find_member(root, "added_tokens", where);
  if (list == nullptr) return tokens;
  if (!list->is_array()) throw UserError(fmt::format("{}: \"added_tokens\" is not a list", where));
  for (const Json& json : *list) {
    AddedToken token;
    const auto id = json_get<int64_t>(json, "id", where);
    token.content = json_get<std::string>(json, "content", where);
    if (id < 0 || id >= kMaxTokenId) {
      throw UserError(fmt::format("{}: the added token \"{}\" has the id {}", where, token.content, id));
    }
    token.id = static_cast<int32_t>(id);
    token.single_word = json_get_or(json, "single_word", false, where);
    token.lstrip = json_get_or(json, "lstrip", false, where);
    token.rstrip = json_get_or(json, "rstrip", false, where);
    token.special = json_get_or(json, "special", false, where);
    token.normalized = json_get_or(json, "normalized", !token.special, where);
    // A token known to the model has the model's id, whatever the list says.
    if (const auto known = find(token.content)) token.id = *known;
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

const Json& member_or_null(const Json& root, std::string_view key, std::string_view where) {
  static const Json kNull;
  const Json* member = find_member(root, key, where);
  return member == nullptr ? kNull : *member;
}

// Old files omit the model's type; those with merges are BPE.
std::string model_type(const Json& model, std::string_view where) {
  if (const auto type = json_find<std::string>(model, "type", where)) return *type;
  if (find_member(model, "merges", where) != nullptr) return "BPE";
  if (find_member(model, "unk_id", where) != nullptr) return "Unigram";
  return find_member(model, "continuing_subword_prefix", where) != nullptr ? "WordPiece" : "WordLevel";
}

std::unique_ptr<TokenModel> make_model(const Json& model, const std::string& type, bool is_byte_level,
                                       std::string_view where) {
  if (type == "BPE") return is_byte_level ? make_byte_level_bpe(model, where) : make_character_bpe(model, where);
  if (type == "Unigram") return make_unigram(model, where);
  if (type == "WordPiece") return make_word_piece(model, where);
  if (type == "WordLevel") return make_word_level(model, where);
  throw UserError(fmt::format("{}: model \"{}\" is not supported", where, type),
                  "supported are BPE, Unigram, WordPiece and WordLevel");
}

}  // namespace

std::unique_ptr<Tokenizer> make_json_tokenizer(const Json& root, const std::string& where,
                                               const std::function<SpecialIds(const TokenFinder&)>& choose) {
  PipelineTokenizer::Parts parts;
  parts.name = where;
  const Json& model = get_member(root, "model", where);
  const std::string type = model_type(model, where);
  parts.normalizer = make_normalizer(member_or_null(root, "normalizer", where), where);
  const bool keep_bytes = type == "BPE" && can_be_byte_level(model, where);
  PreTokenizerSpec spec = make_pre_tokenizer(member_or_null(root, "pre_tokenizer", where), keep_bytes, where);
  parts.pre_tokenizer = std::move(spec.pre_tokenizer);
  parts.is_byte_level = spec.is_byte_level;
  parts.model = make_model(model, type, parts.is_byte_level, where);

  const auto find_in_model = [&](const std::string& token) -> std::optional<int32_t> {
    const std::string bytes = parts.is_byte_level ? spelt_bytes(token).value_or(token) : token;
    const int32_t id = parts.model->vocabulary().find(bytes);
    if (id >= 0) return id;
    if (!parts.is_byte_level) return std::nullopt;
    const Json& vocab = get_member(model, "vocab", where);  // for tokens outside the alphabet
    const auto found = vocab.find(token);
    return found == vocab.end() ? std::nullopt : std::optional(found->get<int32_t>());
  };
  parts.added = read_added_tokens(root, find_in_model, where);
  parts.frame = read_post_processor(member_or_null(root, "post_processor", where), where);
  const Json& decoder = member_or_null(root, "decoder", where);
  if (!decoder.is_null()) {
    parts.decoder = make_token_decoder(decoder, where);
    parts.decodes_bytes = parts.is_byte_level && json_get<std::string>(decoder, "type", where) == "ByteLevel";
  }
  parts.special = choose([&](const std::string& token) -> std::optional<int32_t> {
    for (const AddedToken& added : parts.added) {
      if (added.content == token) return added.id;
    }
    return find_in_model(token);
  });
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

std::unique_ptr<Tokenizer> load_tokenizer_json(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? path / "tokenizer.json" : path;
  if (!fs::exists(file)) {
    throw UserError(fmt::format("tokenizer_model {}: {} does not exist", path.string(), file.string()),
                    "name a tokenizer.json or a folder that holds one");
  }
  return make_json_tokenizer(load_json(file), file.string(),
                             [&](const TokenFinder& find) { return find_special_ids(file.parent_path(), find); });
}

}  // namespace megalith
