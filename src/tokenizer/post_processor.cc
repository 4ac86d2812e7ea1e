#include "tokenizer/post_processor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "tokenizer/token_model.h"

namespace megalith {
namespace {

int32_t checked_id(int64_t id, const std::string& name, std::string_view where) {
  if (id < 0 || id >= kMaxTokenId) {
    throw UserError(fmt::format("{}: special token \"{}\" has the id {}", where, name, id));
  }
  return static_cast<int32_t>(id);
}

TokenFrame read_template(const Json& json, std::string_view where) {
  const Json& single = get_member(json, "single", where);
  if (!single.is_array()) throw UserError(fmt::format("{}: post_processor: \"single\" is not a list", where));
  TokenFrame frame;
  int num_texts = 0;
  for (const Json& item : single) {
    if (find_member(item, "Sequence", where) != nullptr) {
      ++num_texts;
      continue;
    }
    const auto name = json_get<std::string>(get_member(item, "SpecialToken", where), "id", where);
    const Json& entry = get_member(get_member(json, "special_tokens", where), name, where);
    for (const int64_t id : json_get<std::vector<int64_t>>(entry, "ids", where)) {
      (num_texts == 0 ? frame.before : frame.after).push_back(checked_id(id, name, where));
    }
  }
  if (num_texts != 1) {
    throw UserError(fmt::format("{}: the template for one text holds the text {} times", where, num_texts));
  }
  return frame;
}

// ["[SEP]", 102]
int32_t read_pair(const Json& json, const char* key, std::string_view where) {
  const Json& pair = get_member(json, key, where);
  if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string()) {
    throw UserError(fmt::format("{}: post_processor: \"{}\" is not a token and its id", where, key));
  }
  const int64_t id = json_as<int64_t>(pair[1], fmt::format("{}: post_processor: {}", where, key));
  return checked_id(id, *try_text(pair[0]), where);
}

}  // namespace

TokenFrame read_post_processor(const Json& json, std::string_view where) {
  if (json.is_null()) return {};
  const auto type = json_get<std::string>(json, "type", where);
  if (type == "ByteLevel") return {};  // changes only offsets, which we do not keep
  if (type == "TemplateProcessing") return read_template(json, where);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return {{read_pair(json, "cls", where)}, {read_pair(json, "sep", where)}};
  }
  if (type == "Sequence") {
    const Json& list = get_member(json, "processors", where);
    if (!list.is_array()) throw UserError(fmt::format("{}: \"processors\" is not a list", where));
    TokenFrame frame;
    for (const Json& step : list) {
      const TokenFrame outer = read_post_processor(step, where);
      frame.before.insert(frame.before.begin(), outer.before.begin(), outer.before.end());
      frame.after.insert(frame.after.end(), outer.after.begin(), outer.after.end());
    }
    return frame;
  }
  throw UserError(fmt::format("{}: post_processor \"{}\" is not supported", where, type),
                  "supported are ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing and Sequence");
}

}  // namespace megalith
