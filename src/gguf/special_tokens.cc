// One key follows from another as in llama.cpp's gguf-py/gguf/vocab.py (SpecialVocab), so that the keys are the same.
#include "gguf/special_tokens.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "core/error.h"
#include "core/file.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

const std::map<std::string, std::string_view> kIdKeys = {
    {"bos", "bos_token_id"},     {"eos", "eos_token_id"},       {"unk", "unknown_token_id"},
    {"sep", "seperator_token_id"}, {"pad", "padding_token_id"}, {"mask", "mask_token_id"},
    {"eot", "eot_token_id"},     {"eom", "eom_token_id"},
};

// The special token that a step of a template names; "" for a sequence.
std::string special_of(const Json& steps, size_t index) {
  if (index >= steps.size()) return "";
  const Json* token = find_member(steps.at(index), "SpecialToken", "post_processor");
  return token == nullptr ? "" : json_get_or<std::string>(*token, "id", "", "post_processor");
}

}  // namespace

std::string special_token_text(const Json& config, const std::string& kind) {
  if (!config.is_object()) return "";
  const auto entry = config.find(kind + "_token");
  if (entry == config.end()) return "";
  const std::string* text = try_text(entry->is_object() && entry->contains("content") ? entry->at("content") : *entry);
  return text == nullptr ? "" : *text;
}

GgufSpecialTokens::GgufSpecialTokens(const GgufTokenizerFiles& files, const Json* tokenizer, const Json& config,
                                     int64_t num_tokens)
    : config_(files.config()), num_tokens_(num_tokens) {
  if (tokenizer != nullptr) {
    if (const Json* normalizer = find_member(*tokenizer, "normalizer", "tokenizer.json")) read_lowering(*normalizer);
    if (named("bos").empty() && !named("cls").empty()) name("bos", named("cls"));
    if (named("eos").empty() && !named("sep").empty()) name("eos", named("sep"));
    if (const Json* processor = find_member(*tokenizer, "post_processor", "tokenizer.json")) {
      const Json* parts = find_member(*processor, "processors", "tokenizer.json");
      if (parts == nullptr) {
        read_post_processor(*processor);
      } else {
        for (const Json& part : *parts) read_post_processor(part);
      }
    }
  }
  if (!files.folder.empty()) read_chat_template(files.folder);
  if (config_.is_object()) {
    const Json* added = tokenizer == nullptr ? nullptr : find_member(*tokenizer, "added_tokens", "tokenizer.json");
    for (const std::string& kind : kinds_) {
      const Json* is_added = find_member(config_, "add_" + kind + "_token", "tokenizer_config.json");
      if (is_added != nullptr && is_added->is_boolean()) add(kind, *is_added == true);
      const std::string text = named(kind);
      if (text.empty() || added == nullptr) continue;
      for (const Json& token : *added) {
        if (json_get_or<std::string>(token, "content", "", "added_tokens") != text) continue;
        set(kind, json_get<int64_t>(token, "id", "added_tokens"));
        break;
      }
    }
  }
  for (const std::string& kind : kinds_) {
    const auto id = config.find(kind + "_token_id");
    if (id == config.end() || !id->is_number_integer()) continue;
    set(kind, json_as<int64_t>(*id, kind + "_token_id"));
  }
}

void GgufSpecialTokens::add(const std::string& kind, bool is_added) {
  const auto found = std::ranges::find(added_, kind, &std::pair<std::string, bool>::first);
  if (found == added_.end()) {
    added_.emplace_back(kind, is_added);
  } else {
    found->second = is_added;
  }
}

void GgufSpecialTokens::set(const std::string& kind, int64_t id) {
  if (id < 0 || id >= num_tokens_) return;
  const auto found = std::ranges::find(ids_, kind, &std::pair<std::string, int64_t>::first);
  if (found == ids_.end()) ids_.emplace_back(kind, id);
}

void GgufSpecialTokens::read_lowering(const Json& normalizer) {
  const auto type = json_get_or<std::string>(normalizer, "type", "", "normalizer");
  if (type == "Lowercase") lowers_ = true;
  if (type == "StripAccents") strips_accents_ = true;
  if (type != "Sequence") return;
  for (const Json& part : get_member(normalizer, "normalizers", "normalizer")) read_lowering(part);
}

void GgufSpecialTokens::read_post_processor(const Json& processor) {
  const auto type = json_get_or<std::string>(processor, "type", "", "post_processor");
  if (type == "RobertaProcessing") {
    for (const char* kind : {"bos", "eos", "sep"}) add(kind, true);
    for (const char* kind : {"cls", "sep"}) {
      if (named(kind).empty() && config_.is_object())
        name(kind, json_as<std::string>(get_member(processor, kind, "post_processor").at(0), "post_processor"));
    }
  } else if (type == "TemplateProcessing") {
    read_templates(get_member(processor, "single", "post_processor"), get_member(processor, "pair", "post_processor"));
  }
}

void GgufSpecialTokens::read_templates(const Json& single, const Json& pair) {
  if (!single.is_array() || !pair.is_array())
    throw UserError("tokenizer.json: post_processor: \"single\" and \"pair\" are not lists");
  const bool has_config = config_.is_object();
  std::string first, last;
  if (single.size() > 1) {
    first = special_of(single, 0);
    last = special_of(single, single.size() - 1);
  }
  if (!first.empty()) {
    if (first != named("bos") && first != named("cls") && has_config) {
      if (named("bos").empty()) name("bos", first);
      if (named("cls").empty()) name("cls", first);
    }
    add("bos", !has_config || first == named("bos") || first == named("cls"));
  }
  if (!last.empty()) {
    const std::string end = named("eos");
    if (has_config && last != end) {
      // The text's end in a conversation keeps its id beside the end that is added.
      for (const char* kind : {"eot", "eom"}) {
        if (std::ranges::find(kinds_, kind) != kinds_.end()) continue;
        kinds_.emplace_back(kind);
        name(kind, end);
        break;
      }
      name("eos", last);
    }
    add("eos", true);
  }
  // Between two texts: A [sep] [eos] B.
  const bool begins = !first.empty() && special_of(pair, 0) == first;
  const bool ends = !last.empty() && !pair.empty() && special_of(pair, pair.size() - 1) == last;
  Json middle = Json::array();
  for (size_t i = begins ? 2 : 1; i + (ends ? 2 : 1) < pair.size(); ++i) middle.push_back(pair[i]);
  if (middle.empty()) return;
  const auto separates = [&](const std::string& token) { return token == named("sep") || token == named("eos"); };
  const std::string between = special_of(middle, 0);
  bool adds = !between.empty() && separates(between) && last.empty();
  if (middle.size() == 2) adds = adds || separates(special_of(middle, 1));
  add("sep", adds);
  if (adds && named("sep").empty() && has_config) name("sep", named("eos"));
}

void GgufSpecialTokens::read_chat_template(const fs::path& folder) {
  const auto take = [&](const Json& value) {
    if (const std::string* text = try_text(value)) templates_ = {{"default", *text}};
    if (!value.is_array()) return;
    for (const Json& choice : value) {
      templates_.emplace_back(json_get_or<std::string>(choice, "name", "", "chat_template"),
                              json_get_or<std::string>(choice, "template", "", "chat_template"));
    }
  };
  if (config_.contains("chat_template")) return take(config_["chat_template"]);
  const fs::path jinja = folder / "chat_template.jinja", json = folder / "chat_template.json";
  if (fs::exists(jinja)) {
    take(read_file(jinja));
    const fs::path more = folder / "additional_chat_templates";
    std::vector<fs::path> files;
    if (fs::is_directory(more)) files.assign(fs::directory_iterator(more), {});
    std::ranges::sort(files);
    for (const fs::path& file : files) {
      if (file.extension() == ".jinja") templates_.emplace_back(file.stem().string(), read_file(file));
    }
  } else if (fs::exists(json)) {
    const Json all = load_json(json);
    if (all.contains("chat_template")) take(all["chat_template"]);
  }
}

void GgufSpecialTokens::write(GgufKeys& keys) const {
  for (const auto& [kind, id] : ids_) {
    if (const auto key = kIdKeys.find(kind); key != kIdKeys.end())
      keys.set(std::string("tokenizer.ggml.") + std::string(key->second), static_cast<uint32_t>(id));
  }
  for (const auto& [kind, is_added] : added_) {
    if (kind == "bos" || kind == "eos" || kind == "sep") keys.set("tokenizer.ggml.add_" + kind + "_token", is_added);
  }
  std::vector<std::string> names;
  for (auto [name, text] : templates_) {
    std::ranges::replace_if(name, [](unsigned char c) { return c >= 128 || std::isalnum(c) == 0; }, '_');
    if (name == "default" || name.empty()) continue;
    names.push_back(name);
    keys.set("tokenizer.chat_template." + name, text);
  }
  keys.set("tokenizer.chat_templates", names);
  for (const auto& [name, text] : templates_) {
    if (name == "default") keys.set("tokenizer.chat_template", text);
  }
  if (lowers_) keys.set("tokenizer.ggml.normalizer.lowercase", *lowers_);
  if (strips_accents_) keys.set("tokenizer.ggml.normalizer.strip_accents", *strips_accents_);
}

}  // namespace megalith
