#include "config/yaml_document.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "config/secret_names.h"
#include "core/collect_errors.h"
#include "core/input_file.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// Real configurations: a few kilobytes, five levels, a few hundred values, at most ten files.
constexpr uintmax_t kMostBytes = 1 << 20;
constexpr size_t kDeepest = 32;
constexpr size_t kMostNodes = 20'000;
constexpr size_t kMostFiles = 200;

constexpr const char* kExtends = "extends";
constexpr const char* kBases = "bases";
constexpr const char* kIncludes = "includes";

bool is_composition_key(const std::string& key) { return key == kExtends || key == kBases || key == kIncludes; }

YamlNode* find_child(YamlNode& map, const std::string& key) {
  for (auto& [name, child] : map.children) {
    if (name == key) return &child;
  }
  return nullptr;
}

// Puts `upper` over `lower`: maps merge key by key, anything else replaces.
void merge(YamlNode& lower, YamlNode upper) {
  if (!lower.is_map() || !upper.is_map()) {
    lower = std::move(upper);
    return;
  }
  for (auto& [key, child] : upper.children) {
    if (YamlNode* present = find_child(lower, key)) {
      merge(*present, std::move(child));
    } else {
      lower.children.emplace_back(key, std::move(child));
    }
  }
  lower.where = upper.where;
}

std::string read_text(const fs::path& file) {
  std::error_code code;
  const fs::file_status status = fs::status(file, code);
  if (!fs::exists(status)) throw UserError(fmt::format("{}: no such file", file.string()), "check the path");
  if (fs::is_directory(status)) {
    throw UserError(fmt::format("{} is a folder", file.string()), "name a YAML file within it");
  }
  // A pipe (`--config <(…)`) has no known size: bound the read.
  const std::string text = read_stream(file, kMostBytes + 1);
  if (text.size() > kMostBytes) {
    throw UserError(
        fmt::format("{} is larger than {}, too large for a configuration", file.string(), format_bytes(kMostBytes)),
        "--config takes a YAML file of options");
  }
  if (text.find('\0') != std::string::npos) {
    throw UserError(fmt::format("{} is not a text file", file.string()), "--config takes a YAML file of options");
  }
  return text;
}

class DocumentCounter final : public YAML::EventHandler {
 public:
  size_t count = 0;
  YAML::Mark last;

  void OnDocumentStart(const YAML::Mark& mark) override {
    // At a ',' outside a list the parser yields empty documents forever.
    if (count > 0 && mark.pos == last.pos) throw YAML::ParserException(mark, "a value cannot begin like this");
    last = mark;
    ++count;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Number of documents: 0, 1, or 2 for more.
size_t count_documents(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentCounter counter;
  while (counter.count < 2 && parser.HandleNextDocument(counter)) {
  }
  return counter.count;
}

class Loader {
 public:
  Loader(const EnvironmentMap& environment, YamlDocument& result) : environment_(environment), result_(result) {}

  // The composed file. UserError if it cannot be read at all; smaller faults go to the result's errors.
  YamlNode load(const fs::path& file) {
    std::error_code code;
    const fs::path identity = fs::weakly_canonical(file, code);
    const auto cycle = std::find(open_files_.begin(), open_files_.end(), identity);
    if (cycle != open_files_.end()) {
      std::vector<std::string> names;
      for (auto link = cycle; link != open_files_.end(); ++link) names.push_back(link->filename().string());
      names.push_back(identity.filename().string());
      throw UserError(fmt::format("{}: the file is composed of itself: {}", file.string(), join(names, " -> ")),
                      "remove one of these 'extends', 'bases' or 'includes'");
    }
    if (++num_files_ > kMostFiles) {
      throw UserError(fmt::format("{}: more than {} files are composed", file.string(), kMostFiles),
                      "extend fewer files; does one of them extend another twice?");
    }
    open_files_.push_back(identity);
    YamlNode composed = compose(file, parse(file));
    open_files_.pop_back();
    return composed;
  }

 private:
  YamlNode parse(const fs::path& file) {
    const std::string name = file.lexically_normal().string();
    const std::string text = read_text(file);
    try {
      const size_t num_documents = count_documents(text);
      if (num_documents == 0) return {};
      if (num_documents > 1) {
        throw UserError(fmt::format("{} holds more than one YAML document", name), "keep one; '---' begins another");
      }
      return convert(YAML::Load(text), name, 0, fmt::format("{}:1", name));
    } catch (const YAML::Exception& error) {
      const std::string place = error.mark.is_null() ? name : fmt::format("{}:{}", name, error.mark.line + 1);
      throw UserError(fmt::format("{}: not valid YAML: {}", place, error.msg), "check indentation, colons and quotes");
    }
  }

  // Copies the parser's graph, where aliases share nodes, into a bounded tree.
  YamlNode convert(const YAML::Node& node, const std::string& file, size_t depth, const std::string& where) {
    if (depth > kDeepest) {
      throw UserError(fmt::format("{}: nested deeper than {} levels", where, kDeepest),
                      "options are flat; at most a few levels are needed");
    }
    if (++num_nodes_ > kMostNodes) {
      throw UserError(fmt::format("{}: more than {} values", where, kMostNodes), "an alias may be expanded too often");
    }
    YamlNode result;
    result.where = where;
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        break;
      case YAML::NodeType::Scalar:
        result.kind = YamlNode::Kind::kScalar;
        result.is_quoted = node.Tag() == "!";
        try {
          result.text = substitute_variables(node.Scalar(), environment_, &result.secret);
        } catch (const UserError& error) {
          result_.errors.emplace_back(fmt::format("{}: {}", where, error.message()), error.remedy());
        }
        break;
      case YAML::NodeType::Sequence:
        result.kind = YamlNode::Kind::kList;
        for (const YAML::Node& item : node) {
          result.items.push_back(convert(item, file, depth + 1, place(file, item, where)));
        }
        break;
      case YAML::NodeType::Map:
        result.kind = YamlNode::Kind::kMap;
        for (const auto& entry : node) add_entry(result, entry.first, entry.second, file, depth);
        break;
    }
    return result;
  }

  void add_entry(YamlNode& map, const YAML::Node& key, const YAML::Node& value, const std::string& file, size_t depth) {
    const std::string where = place(file, key, map.where);
    if (!key.IsScalar()) {
      result_.errors.emplace_back(fmt::format("{}: a key must be a word", where), "write NAME: VALUE");
      return;
    }
    YamlNode child = convert(value, file, depth + 1, where);
    if (YamlNode* earlier = find_child(map, key.Scalar())) {
      result_.notes.push_back(
          fmt::format("{}: '{}' was written at {} already; this one is used", where, key.Scalar(), earlier->where));
      *earlier = std::move(child);
    } else {
      map.children.emplace_back(key.Scalar(), std::move(child));
    }
  }

  static std::string place(const std::string& file, const YAML::Node& node, const std::string& otherwise) {
    const YAML::Mark mark = node.Mark();
    return mark.is_null() ? otherwise : fmt::format("{}:{}", file, mark.line + 1);
  }

  YamlNode compose(const fs::path& file, YamlNode own) {
    if (!own.is_map()) return own;
    std::map<std::string, YamlNode> lists;
    std::erase_if(own.children, [&](auto& entry) {
      if (!is_composition_key(entry.first)) return false;
      lists[entry.first] = std::move(entry.second);
      return true;
    });
    if (lists.empty()) return own;

    YamlNode below;
    below.kind = YamlNode::Kind::kMap;
    for (const fs::path& base : files_of(lists, kBases, file)) merge_file(below, base);
    if (lists.contains(kBases)) check_keys_exist(own, below, "");
    for (const fs::path& base : files_of(lists, kExtends, file)) merge_file(below, base);
    merge(below, std::move(own));

    // Includes fill in below everything else, the first file on top.
    std::vector<fs::path> included = files_of(lists, kIncludes, file);
    YamlNode bottom;
    bottom.kind = YamlNode::Kind::kMap;
    for (auto path = included.rbegin(); path != included.rend(); ++path) merge_file(bottom, *path);
    merge(bottom, std::move(below));
    return bottom;
  }

  void merge_file(YamlNode& below, const fs::path& path) {
    YamlNode loaded = load(path);
    if (loaded.kind == YamlNode::Kind::kNull) return;
    if (loaded.is_map()) return merge(below, std::move(loaded));
    result_.errors.emplace_back(fmt::format("{}: the file is not a map of keys", loaded.where), "write NAME: VALUE");
  }

  std::vector<fs::path> files_of(std::map<std::string, YamlNode>& lists, const char* key, const fs::path& file) {
    const auto found = lists.find(key);
    if (found == lists.end() || found->second.kind == YamlNode::Kind::kNull) return {};
    YamlNode& list = found->second;
    std::vector<YamlNode> entries = list.kind == YamlNode::Kind::kList ? list.items : std::vector<YamlNode>{list};
    std::vector<fs::path> paths;
    for (const YamlNode& entry : entries) {
      if (!entry.secret.empty()) {
        collect(result_.errors, [&] { entry.refuse_secret(); });
        continue;
      }
      std::error_code code;
      const fs::path path = (file.parent_path() / entry.text).lexically_normal();
      if (!entry.is_scalar() || entry.text.empty()) {
        result_.errors.emplace_back(fmt::format("{}: '{}' takes file names", entry.where, key),
                                    "write one name or a list of names");
      } else if (!fs::exists(path, code)) {
        result_.errors.emplace_back(
            fmt::format("{}: {} names '{}', which is not there", entry.where, key, entry.text),
            fmt::format("looked for {}; paths are relative to the file that names them", path.string()));
      } else {
        paths.push_back(path);
      }
    }
    return paths;
  }

  void check_keys_exist(const YamlNode& own, const YamlNode& base, const std::string& prefix) {
    for (const auto& [key, child] : own.children) {
      const YamlNode* present = base.find(key);
      if (!present) {
        std::vector<std::string> names;
        for (const auto& [name, unused] : base.children) names.push_back(name);
        const std::string nearest = nearest_word(key, names);
        result_.errors.emplace_back(
            fmt::format("{}: '{}{}' is in none of this file's bases{}", child.where, prefix, key,
                        nearest.empty() ? "" : fmt::format(". Did you mean '{}'?", nearest)),
            "'bases' lets a file change only keys that a base has; use 'extends' to add new ones");
      } else if (child.is_map() && present->is_map()) {
        check_keys_exist(child, *present, prefix + key + ".");
      }
    }
  }

  const EnvironmentMap& environment_;
  YamlDocument& result_;
  std::vector<fs::path> open_files_;
  size_t num_files_ = 0;
  size_t num_nodes_ = 0;
};

}  // namespace

bool is_name_of_secret(const std::string& name) {
  const std::string folded = "_" + lower_case(name) + "_";
  constexpr std::string_view kParts[] = {"token_",   "secret",  "passw",       "passphrase",  "credential",
                                         "api_key_", "apikey_", "access_key_", "private_key_"};
  return std::any_of(std::begin(kParts), std::end(kParts),
                     [&](std::string_view part) { return folded.find(part) != std::string::npos; });
}

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const auto& [name, child] : children) {
    if (name == key) return &child;
  }
  return nullptr;
}

void YamlNode::refuse_secret() const {
  if (secret.empty()) return;
  throw UserError(fmt::format("{}: by its name the variable {} holds a secret, and the values of options are written "
                              "down: in config.yaml, run.json, the page and checkpoints",
                              where, secret),
                  "leave it out of the configuration: the program reads HF_TOKEN from the environment where it needs "
                  "it. A variable without a secret needs another name");
}

WrittenValue YamlNode::written() const {
  using Form = WrittenValue::Form;
  refuse_secret();
  switch (kind) {
    case Kind::kNull:
      return WrittenValue::null();
    case Kind::kScalar:
      return {is_quoted ? Form::kQuoted : Form::kText, {text}};
    case Kind::kList: {
      WrittenValue value{Form::kList, {}};
      for (const YamlNode& item : items) {
        if (!item.is_scalar()) {
          throw UserError(fmt::format("{}: a list holds {} here", item.where,
                                      item.kind == Kind::kNull ? "an empty item" : "another list or a map"),
                          "lists hold plain values: [a, b]");
        }
        value.items.push_back(item.written().text());
      }
      return value;
    }
    case Kind::kMap:
      break;
  }
  throw UserError(fmt::format("{}: found a map where a value was expected", where), "options are flat: NAME: VALUE");
}

YamlDocument load_yaml(const std::filesystem::path& file, const EnvironmentMap& environment) {
  YamlDocument document;
  try {
    document.root = Loader(environment, document).load(file);
  } catch (const UserError& error) {
    document.errors.push_back(error);
  }
  return document;
}

std::string substitute_variables(std::string_view text, const EnvironmentMap& environment, std::string* secret) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t start = text.find("${", i);
    result += text.substr(i, start - i);
    if (start == std::string_view::npos) break;
    // ${NAME} or ${NAME:default}; NAME has no ':', '{' or '}', the default no '}'.
    const size_t name_end = text.find_first_of(":{}", start + 2);
    const size_t end =
        name_end == std::string_view::npos || text[name_end] == '{' ? std::string_view::npos : text.find('}', name_end);
    if (end == std::string_view::npos || name_end == start + 2) {
      result += "${";
      i = start + 2;
      continue;
    }
    const std::string name(text.substr(start + 2, name_end - start - 2));
    const auto found = environment.find(name);
    if (found != environment.end()) {
      result += found->second;
      if (secret != nullptr && is_name_of_secret(name)) *secret = name;
    } else if (text[name_end] == ':') {
      result += text.substr(name_end + 1, end - name_end - 1);
    } else {
      throw UserError(fmt::format("the environment variable '{}' is not set", name),
                      fmt::format("export {}=VALUE, or write ${{{}:DEFAULT}}", name, name));
    }
    i = end + 1;
  }
  return result;
}

}  // namespace megalith
