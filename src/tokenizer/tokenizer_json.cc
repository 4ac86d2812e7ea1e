// tokenizer.json; see tokenizer_json.h.
#include "tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_model.h"
#include "tokenizer/utf8.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// What a post-processor adds around a text.
struct Frame {
  std::vector<int32_t> before, after;
};

struct SpecialIds {
  std::optional<int32_t> eod, bos, pad;
};

class JsonTokenizer final : public Tokenizer {
 public:
  struct Parts {
    std::string name;
    std::vector<AddedToken> added;
    std::unique_ptr<Normalizer> normalizer;  // may be null
    std::unique_ptr<PreTokenizer> pre_tokenizer;
    std::unique_ptr<TokenModel> model;
    Frame frame;
    SpecialIds special;
  };

  explicit JsonTokenizer(Parts parts)
      : name_(std::move(parts.name)),
        normalizer_(std::move(parts.normalizer)),
        pre_tokenizer_(std::move(parts.pre_tokenizer)),
        model_(std::move(parts.model)),
        frame_(std::move(parts.frame)),
        special_(parts.special),
        raw_matcher_(select(parts.added, false, nullptr)),
        normalized_matcher_(select(parts.added, true, normalizer_.get())),
        vocab_size_(model_->vocabulary().end_id()) {
    for (AddedToken& token : parts.added) {
      vocab_size_ = std::max<int64_t>(vocab_size_, token.id + 1);
      added_by_id_[token.id] = std::move(token);
    }
  }

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    std::string repaired;
    if (!is_valid_utf8(text)) {
      repaired = replace_invalid_utf8(text);
      text = repaired;
    }
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 4 + frame_.before.size() + frame_.after.size());
    if (add_special) ids = frame_.before;
    const auto put_token = [&](int32_t id) { ids.push_back(id); };
    const auto put_normal = [&](std::string_view stretch) {
      pre_tokenizer_->split(stretch, [&](std::string_view piece) { model_->encode(piece, ids); });
    };
    raw_matcher_.split(
        text,
        [&](std::string_view stretch) {
          if (normalizer_) {
            normalized_matcher_.split(normalizer_->normalize(stretch), put_normal, put_token);
          } else {
            normalized_matcher_.split(stretch, put_normal, put_token);
          }
        },
        put_token);
    if (add_special) ids.insert(ids.end(), frame_.after.begin(), frame_.after.end());
    return ids;
  }

  std::string token_bytes(int32_t id, bool is_first) const override {
    const auto added = added_by_id_.find(id);
    // The ByteLevel decoder spells an added token out too when all its characters are of the alphabet.
    if (added != added_by_id_.end()) return spelt_bytes(added->second.content).value_or(added->second.content);
    return std::string(model_->vocabulary().bytes(id));
  }

  bool is_special(int32_t id) const override {
    const auto added = added_by_id_.find(id);
    return added != added_by_id_.end() && added->second.special;
  }

  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> eod() const override { return special_.eod; }
  std::optional<int32_t> bos() const override { return special_.bos; }
  std::optional<int32_t> pad() const override { return special_.pad; }
  std::string name() const override { return name_; }

 private:
  static std::vector<AddedToken> select(const std::vector<AddedToken>& all, bool normalized,
                                        const Normalizer* normalizer) {
    std::vector<AddedToken> selected;
    for (const AddedToken& token : all) {
      if (token.normalized != normalized) continue;
      selected.push_back(token);
      if (normalizer != nullptr) selected.back().content = normalizer->normalize(token.content);
    }
    return selected;
  }

  std::string name_;
  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<TokenModel> model_;
  Frame frame_;
  SpecialIds special_;
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  std::map<int32_t, AddedToken> added_by_id_;
  int64_t vocab_size_;
};

constexpr int64_t kMaxId = 1 << 26;

// The id of a token as the file spells it.
std::optional<int32_t> find_spelt(const Json& vocab, const std::string& token) {
  const auto found = vocab.find(token);
  return found == vocab.end() ? std::nullopt : std::optional(found->get<int32_t>());
}

std::vector<AddedToken> read_added_tokens(const Json& root, const Json& vocab, std::string_view where) {
  std::vector<AddedToken> tokens;
  const Json* list = find_member(root, "added_tokens", where);
  if (list == nullptr) return tokens;
  if (!list->is_array()) throw UserError(fmt::format("{}: \"added_tokens\" is not a list", where));
  for (const Json& json : *list) {
    AddedToken token;
    const auto id = json_get<int64_t>(json, "id", where);
    token.content = json_get<std::string>(json, "content", where);
    if (id < 0 || id >= kMaxId) {
      throw UserError(fmt::format("{}: the added token \"{}\" has the id {}", where, token.content, id));
    }
    token.id = static_cast<int32_t>(id);
    token.single_word = json_get_or(json, "single_word", false, where);
    token.lstrip = json_get_or(json, "lstrip", false, where);
    token.rstrip = json_get_or(json, "rstrip", false, where);
    token.special = json_get_or(json, "special", false, where);
    token.normalized = json_get_or(json, "normalized", !token.special, where);
    // A token that the model knows has the model's id, whatever the list says.
    if (const auto known = find_spelt(vocab, token.content)) token.id = *known;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<int32_t> ids_of_special(const Json& table, const std::string& name, std::string_view where) {
  const Json& entry = get_member(table, name, where);
  std::vector<int32_t> ids;
  for (const int64_t id : json_get<std::vector<int64_t>>(entry, "ids", where)) {
    if (id < 0 || id >= kMaxId) throw UserError(fmt::format("{}: special token \"{}\" has the id {}", where, name, id));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void read_post_processor(const Json& json, Frame& frame, std::string_view where) {
  if (json.is_null()) return;
  const auto type = json_get<std::string>(json, "type", where);
  if (type == "ByteLevel") return;  // changes offsets only, and we keep none
  if (type == "Sequence") {
    for (const Json& step : get_member(json, "processors", where)) read_post_processor(step, frame, where);
    return;
  }
  if (type == "TemplateProcessing") {
    const Json& single = get_member(json, "single", where);
    if (!single.is_array()) throw UserError(fmt::format("{}: post_processor: \"single\" is not a list", where));
    Frame inner;
    int num_texts = 0;
    for (const Json& item : single) {
      if (find_member(item, "Sequence", where) != nullptr) {
        ++num_texts;
        continue;
      }
      const auto name = json_get<std::string>(get_member(item, "SpecialToken", where), "id", where);
      const auto ids = ids_of_special(get_member(json, "special_tokens", where), name, where);
      std::vector<int32_t>& side = num_texts == 0 ? inner.before : inner.after;
      side.insert(side.end(), ids.begin(), ids.end());
    }
    if (num_texts != 1) {
      throw UserError(fmt::format("{}: the template for one text holds the text {} times", where, num_texts));
    }
    frame.before.insert(frame.before.begin(), inner.before.begin(), inner.before.end());
    frame.after.insert(frame.after.end(), inner.after.begin(), inner.after.end());
    return;
  }
  throw UserError(fmt::format("{}: post_processor \"{}\" is not supported", where, type),
                  "supported are ByteLevel, TemplateProcessing and Sequence");
}

void check_decoder(const Json& json, std::string_view where) {
  if (json.is_null()) return;
  const auto type = json_get<std::string>(json, "type", where);
  if (type == "ByteLevel") return;
  throw UserError(fmt::format("{}: decoder \"{}\" is not supported with byte-level BPE", where, type),
                  "supported is ByteLevel");
}

const Json& member_or_null(const Json& root, std::string_view key, std::string_view where) {
  static const Json kNull;
  const Json* member = find_member(root, key, where);
  return member == nullptr ? kNull : *member;
}

// A special token as configuration files write it: the text, or an object with "content".
std::optional<std::string> token_text(const Json& config, std::string_view key, std::string_view where) {
  const Json* value = find_member(config, key, where);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return json_find<std::string>(*value, "content", where);
  return json_as<std::string>(*value, fmt::format("{}: {}", where, key));
}

SpecialIds find_special_ids(const fs::path& folder, const std::vector<AddedToken>& added, const Json& vocab) {
  const auto id_of = [&](const std::string& text) -> std::optional<int32_t> {
    for (const AddedToken& token : added) {
      if (token.content == text) return token.id;
    }
    return find_spelt(vocab, text);
  };
  SpecialIds ids;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / file;
    if (!fs::exists(path)) continue;
    const Json config = load_json(path);
    const auto look_up = [&](const char* key, std::optional<int32_t>& id) {
      if (id) return;
      if (const auto text = token_text(config, key, path.string())) id = id_of(*text);
    };
    look_up("eos_token", ids.eod);
    look_up("bos_token", ids.bos);
    look_up("pad_token", ids.pad);
  }
  const auto guess = [&](std::optional<int32_t>& id, std::initializer_list<const char*> names) {
    for (const AddedToken& token : added) {
      for (const char* name : names) {
        if (!id && token.special && token.content == name) id = token.id;
      }
    }
  };
  guess(ids.eod, {"<|end_of_text|>", "<|endoftext|>", "</s>", "<|end▁of▁sentence|>", "<｜end▁of▁sentence｜>"});
  guess(ids.bos, {"<|begin_of_text|>", "<s>", "<|begin▁of▁sentence|>", "<｜begin▁of▁sentence｜>"});
  return ids;
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer_json(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? path / "tokenizer.json" : path;
  if (!fs::exists(file)) {
    throw UserError(fmt::format("tokenizer_model {}: {} does not exist", path.string(), file.string()),
                    "name a tokenizer.json or a folder that holds one");
  }
  const std::string where = file.string();
  const Json root = load_json(file);

  JsonTokenizer::Parts parts;
  parts.name = where;
  const Json& model = get_member(root, "model", where);
  // Old files leave the type of the model out; those with merges are BPE.
  const auto type = json_get_or<std::string>(model, "type", find_member(model, "merges", where) ? "BPE" : "?", where);
  if (type != "BPE") {
    throw UserError(fmt::format("{}: model \"{}\" is not supported", where, type), "supported is byte-level BPE");
  }
  parts.normalizer = make_normalizer(member_or_null(root, "normalizer", where), where);
  PreTokenizerSpec spec = make_pre_tokenizer(member_or_null(root, "pre_tokenizer", where), where);
  if (!spec.is_byte_level) {
    throw UserError(fmt::format("{}: BPE over characters (a pre_tokenizer without ByteLevel) is not supported", where),
                    "supported is byte-level BPE, as of Llama 3, Qwen2.5 and GPT-2");
  }
  parts.pre_tokenizer = std::move(spec.pre_tokenizer);
  parts.model = make_byte_level_bpe(model, where);
  const Json& vocab = get_member(model, "vocab", where);  // checked by the model
  parts.added = read_added_tokens(root, vocab, where);
  read_post_processor(member_or_null(root, "post_processor", where), parts.frame, where);
  check_decoder(member_or_null(root, "decoder", where), where);
  parts.special = find_special_ids(file.parent_path(), parts.added, vocab);
  return std::make_unique<JsonTokenizer>(std::move(parts));
}

}  // namespace megalith
