#include "config/option_checks.h"

#include <string>

#include "core/strings.h"

namespace megalith {
namespace {

// "gpt, t5 or bert"
std::string words_of(ModelTypes types) {
  std::string text;
  for (size_t i = kModelTypeWords.size(); i-- > 0;) {
    if (!types.contains(static_cast<ModelType>(i))) continue;
    const char* separator = text.empty() ? "" : text.find(' ') == std::string::npos ? " or " : ", ";
    text = fmt::format("{}{}{}", kModelTypeWords[i], separator, text);
  }
  return text;
}

}  // namespace

void check_ranges(const OptionSet& options, std::vector<UserError>& errors) {
  for (const auto& option : options.options()) {
    if (option->is_in_range() || option->is_off()) continue;
    errors.emplace_back(
        fmt::format("{} is {}, expected {}", option->name(), option->text(), option->range_text()),
        option->is_above_range() ? "no published model comes near this bound: correct the value" : "correct the value");
  }
}

void check_readers(const OptionSet& given, const OptionSet& fresh, ModelType type, std::vector<UserError>& errors) {
  const std::string_view is = kModelTypeWords[static_cast<size_t>(type)];
  for (const auto& untouched : fresh.options()) {
    const ModelTypes readers = untouched->traits().read_by;
    if (readers.contains(type)) continue;
    const Option& option = *given.find(untouched->name());
    if (option.text() == untouched->text() || (option.is_optional() && option.is_off())) continue;
    const std::string& name = option.name();
    if (const std::string* always = option.text_always(type)) {
      if (option.text() == *always) continue;
      errors.emplace_back(fmt::format("{} is {}, and with model_type {} always {}", name, option.text(), is, *always),
                          fmt::format("leave {} out", name));
      continue;
    }
    const std::string words = words_of(readers);
    const std::string other =
        words.find(' ') == std::string::npos ? fmt::format("set model_type to {}, or ", words) : "";
    errors.emplace_back(fmt::format("{} is for model_type {}, which is {}", name, words, is),
                        fmt::format("{}leave {} out", other, name));
  }
}

std::vector<std::string> leave_out_unread(const OptionSet& options, ModelType type, const Option& also) {
  std::vector<std::string> names;
  for (const auto& option : options.options()) {
    if (option->traits().read_by.contains(type) || option->text_always(type) != nullptr) continue;
    if (option->is_default()) continue;
    const OptionSource source = option->source();
    const OptionLayer highest = option.get() == &also ? OptionLayer::kFile : OptionLayer::kPreset;
    if (source.layer < OptionLayer::kPreset || source.layer > highest) continue;
    names.push_back(fmt::format("{} {}", option->name(), option->text()));
    option->reset(source);
  }
  if (names.empty()) return {};
  return {fmt::format("not read by model_type {}, so the file's do not count: {}",
                      kModelTypeWords[static_cast<size_t>(type)], join(names, ", "))};
}

}  // namespace megalith
