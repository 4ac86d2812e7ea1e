#include "compat/cvs_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compat/cvs_sweep.h"
#include "config/dialect.h"
#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kExample = "_example_";

const std::vector<std::string>& known_names_of(std::string_view object) {
  static const auto all = [] {
    std::map<std::string, std::vector<std::string>, std::less<>> names;
    for (const DialectRow& row : dialect_rows("cvs_names", {"object", "names"})) {
      names[row.cells[0]] = split_words(row.cells[1]);
    }
    return names;
  }();
  return all.find(object)->second;
}

bool has_name(std::string_view object, const std::string& name) {
  const std::vector<std::string>& names = known_names_of(object);
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "global_batch_size" is batch_size.
std::string own_name(const std::string& name) {
  for (const std::string& also : known_names_of("also")) {
    const size_t equals = also.find('=');
    if (name == also.substr(0, equals)) return also.substr(equals + 1);
  }
  return name;
}

struct TextPlace {
  size_t line = 1, column = 1;
};

TextPlace place_of(std::string_view text, size_t byte) {
  TextPlace place;
  for (size_t i = 0; i < std::min(byte, text.size()); ++i) {
    ++place.column;
    if (text[i] == '\n') place = {place.line + 1, 1};
  }
  return place;
}

// Replaces each comma that nothing follows with a blank.
std::string without_trailing_commas(std::string_view text, const std::string& file,
                                    std::vector<std::string>& warnings) {
  std::string result(text);
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      is_quoted = !is_quoted;
    } else if (!is_quoted && text[i] == ',') {
      const size_t next = text.find_first_not_of(" \t\r\n", i + 1);
      if (next == std::string_view::npos || (text[next] != '}' && text[next] != ']')) continue;
      result[i] = ' ';
      const TextPlace place = place_of(text, i);
      warnings.push_back(fmt::format("{}:{}:{}: a comma before '{}' is not JSON; it is taken as if it were not there",
                                     file, place.line, place.column, text[next]));
    }
  }
  return result;
}

Json parse_with_place(const std::string& text, const std::string& file) {
  try {
    return parse_json(text, file);
  } catch (const UserError&) {
    try {  // a second time, for the column
      const auto keeps_nothing = [](int, OrderedJson::parse_event_t, OrderedJson&) { return false; };
      [[maybe_unused]] const OrderedJson parsed = OrderedJson::parse(text, keeps_nothing);
    } catch (const OrderedJson::parse_error& error) {
      const TextPlace place = place_of(text, error.byte == 0 ? 0 : error.byte - 1);
      std::string reason = error.what();
      if (const size_t colon = reason.find(": "); colon != std::string::npos) reason.erase(0, colon + 2);
      throw UserError(fmt::format("{}:{}:{}: not valid JSON: {}", file, place.line, place.column, reason),
                      "the files under configs/cvs/ are examples");
    }
    throw;
  }
}

class CvsReader {
 public:
  CvsReader(CvsConfig& out, std::string user) : out_(out), user_(std::move(user)) {}

  void read(const Json& root) {
    if (!root.is_object()) {
      throw UserError(fmt::format("{} has no object with \"config\" and \"model_params\"", out_.file),
                      "the files under configs/cvs/ are examples");
    }
    for (const char* part : {"config", "model_params"}) {
      if (const Json* found = member(root, part); found == nullptr || !found->is_object()) {
        errors_.emplace_back(fmt::format("{} has no object \"{}\"", out_.file, part),
                             "the files under configs/cvs/ are examples");
      } else {
        std::string(part) == "config" ? read_config(*found) : read_modes(*found);
      }
    }
    if (!errors_.empty()) throw UserErrors(errors_);
  }

 private:
  static const Json* member(const Json& object, std::string_view name) {
    for (const auto& [key, value] : object.items()) {
      if (cvs_name(key) == name) return &value;
    }
    return nullptr;
  }

  std::string resolved(std::string text) const {
    constexpr std::string_view kUser = "{user-id}";
    for (size_t at = text.find(kUser); at != std::string::npos; at = text.find(kUser, at + user_.size())) {
      text.replace(at, kUser.size(), user_);
    }
    return text;
  }

  std::optional<std::string> text_of(const Json& value, const std::string& where) {
    if (const std::string* text = try_text(value)) return resolved(*text);
    if (value.is_number() || value.is_boolean()) return dump_json(value);  // as if quoted
    errors_.emplace_back(fmt::format("{}: {} is {}, expected a text", out_.file, where, dump_json(value).substr(0, 40)),
                         "every value of CVS's files is a text in quotes");
    return std::nullopt;
  }

  // A member of an object of texts, or a note.
  void read_text(CvsTexts& texts, const std::string& key, const Json& value, const std::string& where,
                 std::string_view object) {
    const std::string written = cvs_name(key), name = own_name(written);
    if (name.starts_with("_")) {
      const std::string* text = try_text(value);
      if (name.starts_with(kExample) && text != nullptr) {
        texts.examples[own_name(name.substr(kExample.size()))] = resolved(*text);
      }
      return;
    }
    if (!has_name(object, name)) {
      const std::string nearest = nearest_word(written, known_names_of(object));
      out_.warnings.push_back(fmt::format("{}: nothing reads {}.{}{}", out_.file, where, key,
                                          nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
      return;
    }
    if (auto text = text_of(value, where + "." + key)) texts.values[name] = std::move(*text);
  }

  void read_config(const Json& object) {
    for (const auto& [key, value] : object.items()) {
      const std::string name = cvs_name(key);
      if (name == "dataset_source") {
        if (value.is_object() && !value.empty()) {
          out_.warnings.push_back(fmt::format("{}: dataset_source has no effect, as in CVS", out_.file));
        }
      } else if (name == "container_config") {
        read_container(value);
      } else if (name == "training_scripts") {
        read_scripts(value);
      } else {
        read_text(out_.config, key, value, "config", "config");
      }
    }
  }

  void read_scripts(const Json& value) {
    if (!value.is_object()) {
      errors_.emplace_back(fmt::format("{}: config.training_scripts is no object", out_.file),
                           "write {\"llama-3\": \"examples/llama/train_llama3.sh\"}");
      return;
    }
    for (const auto& [family, script] : value.items()) {
      if (family.starts_with("_")) continue;
      if (auto text = text_of(script, "config.training_scripts." + family)) {
        out_.training_scripts[lower_case(family)] = std::move(*text);
      }
    }
  }

  void read_container(const Json& value) {
    const Json* devices = value.is_object() ? member(value, "device_list") : nullptr;
    const Json* volumes = value.is_object() ? member(value, "volume_dict") : nullptr;
    if (!value.is_object() || (devices != nullptr && !devices->is_array()) ||
        (volumes != nullptr && !volumes->is_object())) {
      errors_.emplace_back(fmt::format("{}: config.container_config has not the form of CVS", out_.file),
                           "it has a list device_list and an object volume_dict");
      return;
    }
    if (devices != nullptr) {
      for (const Json& one : *devices) {
        if (auto text = text_of(one, "config.container_config.device_list")) out_.device_list.push_back(*text);
      }
    }
    if (volumes == nullptr) return;
    for (const auto& [host, inside] : volumes->items()) {
      if (host.starts_with("_")) continue;
      if (auto text = text_of(inside, "config.container_config.volume_dict." + host)) {
        out_.volume_dict.emplace_back(resolved(host), std::move(*text));
      }
    }
  }

  // Calls `read` for every member that is an object; skips notes; anything else is an error.
  template <typename Read>
  void each_object(const Json& object, const std::string& where, const Read& read) {
    for (const auto& [key, value] : object.items()) {
      if (key.starts_with("_")) continue;
      if (value.is_object()) {
        read(cvs_name(key), value);
      } else {
        errors_.emplace_back(fmt::format("{}: {}.{} is no object", out_.file, where, key),
                             "cases lie in model_params.<single_node|multi_node>.<model>.<gpu>");
      }
    }
  }

  void read_modes(const Json& modes) {
    each_object(modes, "model_params", [&](const std::string& mode, const Json& models) {
      each_object(models, mode, [&](const std::string& model, const Json& gpus) {
        each_object(gpus, mode + "." + model, [&](const std::string& gpu, const Json& params) {
          read_entry({.mode = mode, .model = model, .gpu = gpu, .params = {}, .results = {}}, params);
        });
      });
    });
  }

  void read_entry(CvsEntry entry, const Json& params) {
    // The runs of a sweep share most names, and one warning is enough.
    const std::string where = out_.sweep ? entry.mode + "/" + entry.model : entry.name();
    for (const auto& [key, value] : params.items()) {
      if (cvs_name(key) != "result_dict") {
        read_text(entry.params, key, value, where, "model_params");
      } else if (value.is_object()) {
        for (const auto& [result, bound] : value.items()) {
          read_text(entry.results, result, bound, where + ".result_dict", "result_dict");
        }
      } else {
        errors_.emplace_back(fmt::format("{}: {}.result_dict is no object", out_.file, entry.name()), "");
      }
    }
    out_.entries.push_back(std::move(entry));
  }

  CvsConfig& out_;
  std::string user_;
  std::vector<UserError> errors_;
};

}  // namespace

const std::string* CvsTexts::find(const std::string& name) const {
  const auto found = values.find(name);
  return found == values.end() ? nullptr : &found->second;
}

std::string cvs_name(std::string_view text) {
  std::string name = lower_case(text);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

bool is_unresolved(std::string_view text) { return lower_case(text).find("<changeme>") != std::string::npos; }

Json parse_cvs_json(std::string_view text, const std::string& file, std::vector<std::string>& warnings) {
  return parse_with_place(without_trailing_commas(text, file, warnings), file);
}

CvsConfig parse_cvs_config(std::string_view text, const std::string& file, const std::string& user) {
  CvsConfig config;
  config.file = file;
  Json root = parse_cvs_json(text, file, config.warnings);
  if (is_cvs_sweep(root)) root = cases_of_sweep(root, config);
  CvsReader(config, user).read(root);
  if (config.config.find("torchtitan_root") != nullptr) config.trainer = "torchtitan";
  // Each run of a sweep repeats those of its model.
  std::sort(config.warnings.begin(), config.warnings.end());
  config.warnings.erase(std::unique(config.warnings.begin(), config.warnings.end()), config.warnings.end());
  if (config.entries.empty()) {
    throw UserError(fmt::format("{} has no case", file),
                    "cases lie in model_params.<single_node|multi_node>.<model>.<gpu>");
  }
  return config;
}

void set_cvs_values(CvsConfig& config, std::span<const std::string> words, const std::string& user) {
  std::vector<std::string> all;
  for (const char* object : {"config", "model_params", "result_dict"}) {
    all.insert(all.end(), known_names_of(object).begin(), known_names_of(object).end());
  }
  std::vector<UserError> errors;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      errors.emplace_back(fmt::format("--set {}: expected NAME=VALUE", word),
                          "for example --set training_iterations=30");
      continue;
    }
    // "config.nnodes" and "model_params.….result_dict.mem_usage" are names too.
    std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    if (const size_t dot = name.rfind('.'); dot != std::string::npos) name.erase(0, dot + 1);
    name = own_name(cvs_name(name));
    if (const size_t at = value.find("{user-id}"); at != std::string::npos) value.replace(at, 9, user);
    if (has_name("config", name)) {
      config.config.values[name] = value;
    } else if (has_name("model_params", name)) {
      for (CvsEntry& entry : config.entries) entry.params.values[name] = value;
    } else if (has_name("result_dict", name)) {
      for (CvsEntry& entry : config.entries) entry.results.values[name] = value;
    } else {
      const std::string nearest = nearest_word(name, all);
      errors.emplace_back(fmt::format("--set {}: CVS's files have no '{}'", word, name),
                          nearest.empty() ? "names are those of config, of a case's parameters and of its result_dict"
                                          : fmt::format("did you mean {}?", nearest));
    }
  }
  if (!errors.empty()) throw UserErrors(errors);
}

}  // namespace megalith
