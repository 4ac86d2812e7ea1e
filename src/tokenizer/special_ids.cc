#include "tokenizer/special_ids.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/json.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// A special token in configuration files: the text, or an object with "content".
std::optional<std::string> token_text(const Json& config, std::string_view key, std::string_view where) {
  const Json* value = find_member(config, key, where);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return json_find<std::string>(*value, "content", where);
  return json_as<std::string>(*value, fmt::format("{}: {}", where, key));
}

}  // namespace

SpecialIds find_special_ids(const fs::path& folder,
                            const std::function<std::optional<int32_t>(const std::string&)>& find) {
  SpecialIds ids;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / file;
    if (!fs::exists(path)) continue;
    const Json config = load_json(path);
    const auto look_up = [&](const char* key, std::optional<int32_t>& id) {
      if (id) return;
      if (const auto text = token_text(config, key, path.string())) id = find(*text);
    };
    look_up("eos_token", ids.eod);
    look_up("bos_token", ids.bos);
    look_up("pad_token", ids.pad);
    look_up("cls_token", ids.cls);
    look_up("sep_token", ids.sep);
    look_up("mask_token", ids.mask);
  }
  const auto guess = [&](std::optional<int32_t>& id, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (!id) id = find(name);
    }
  };
  guess(ids.eod, {"<|end_of_text|>", "<|endoftext|>", "</s>", "<|end▁of▁sentence|>", "<｜end▁of▁sentence｜>"});
  guess(ids.bos, {"<|begin_of_text|>", "<s>", "<|begin▁of▁sentence|>", "<｜begin▁of▁sentence｜>"});
  guess(ids.cls, {"[CLS]"});
  guess(ids.sep, {"[SEP]"});
  guess(ids.mask, {"[MASK]"});
  while (const auto extra = find(fmt::format("<extra_id_{}>", ids.extra.size()))) ids.extra.push_back(*extra);
  return ids;
}

}  // namespace megalith
