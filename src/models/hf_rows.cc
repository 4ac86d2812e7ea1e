#include "models/hf_rows.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace megalith {
namespace {

constexpr const char* kBroken = "the file is broken";
constexpr const char* kBeyond = "no published model comes near this bound: the file is broken";

template <typename T>
struct ValueOf {
  using Type = T;
};
template <typename T>
struct ValueOf<std::optional<T>> {
  using Type = T;
};

// Provides options' ranges. Cached: a set takes 2 ms to make, longer than reading a file.
struct Ranges {
  ModelConfig config;
  OptionSet options{config};
};

void refuse_unless(const Json& json, std::string_view where, const std::string& key, const Json& honoured,
                   const std::string& why) {
  const Json* value = find_member(json, key, where);
  if (value == nullptr || *value == honoured) return;
  throw UserError(
      fmt::format("{}: {} is {}, and only {} can be honoured", where, key, dump_json(*value), dump_json(honoured)),
      why);
}

}  // namespace

int64_t hf_integer(const Json& file, std::string_view key, int64_t otherwise, int64_t most, int64_t least) {
  const auto value = json_get_or<int64_t>(file, key, otherwise, kHfConfigFile);
  if (value >= least && value <= most) return value;
  const bool is_above = value > most;
  throw UserError(fmt::format("{}: {} is {}, expected at {} {}", kHfConfigFile, key, value,
                              is_above ? "most" : "least", is_above ? most : least),
                  is_above ? kBeyond : kBroken);
}

void HfRows::read_field(const std::string& key, const Field& field, const Json& value, const Source& from) {
  std::visit(
      [&](auto member) {
        auto& variable = from.config.*member;
        using Type = std::remove_reference_t<decltype(variable)>;
        using Value = typename ValueOf<Type>::Type;
        if (value.is_null()) {
          variable = Type();
          return;
        }
        const auto number = json_as<Value>(value, fmt::format("{}: {}", from.where, key));
        variable = number;
        bool is_size = true;
        if constexpr (std::is_same_v<Value, int64_t>) is_size = number >= 1;
        thread_local Ranges ranges;
        auto& tried = ranges.config.*member;
        tried = number;
        const Option& option = ranges.options.of(tried);
        if (is_size && option.is_in_range()) return;
        const std::string range = option.range_text();
        const bool is_above = option.is_above_range();
        throw UserError(fmt::format("{}: {} is {}, expected {}", from.where, key, dump_json(value),
                                    is_above   ? range.substr(range.find("at most"))
                                    : !is_size ? "at least 1"
                                               : range),
                        is_above ? kBeyond : kBroken);
      },
      field);
}

HfRows& HfRows::add(Row row) {
  const auto same = row.key.empty() ? rows_.end() : std::ranges::find(rows_, row.key, &Row::key);
  if (same == rows_.end())
    rows_.push_back(std::move(row));
  else
    *same = std::move(row);
  return *this;
}

namespace {

HfValue value_of(HfRows::Field field) {
  return [field](const ModelConfig& config) {
    return std::visit([&](auto member) { return HfValue::json_of(config.*member); }, field);
  };
}

}  // namespace

HfRows& HfRows::required(std::string_view key, Field field, Written written) {
  const std::string name(key);
  const auto read = [=](const Source& from) {
    read_field(name, field, get_member(from.json, name, from.where), from);
  };
  return add({.key = name, .read = read, .write = written.value_or(value_of(field))});
}

HfRows& HfRows::field(std::string_view key, Field field, HfValue otherwise, Written written) {
  return nullable(key, field, otherwise, otherwise, written.value_or(value_of(field)));
}

HfRows& HfRows::nullable(std::string_view key, Field field, HfValue otherwise, HfValue null, Written written) {
  const std::string name(key);
  const auto read = [=](const Source& from) {
    const Json* found = find_member(from.json, name, from.where);
    const HfValue& missing = from.json.contains(name) ? null : otherwise;
    read_field(name, field, found != nullptr ? *found : missing(from.config), from);
  };
  const auto own = [field, null](const ModelConfig& config) {
    Json value = value_of(field)(config);
    return value == null(config) ? Json(nullptr) : value;
  };
  return add({.key = name, .read = read, .write = written.value_or(own)});
}

HfRows& HfRows::opposite(std::string_view key, bool ModelConfig::*field, bool otherwise) {
  return custom(
      key,
      [=, name = std::string(key)](const Json& file, ModelConfig& config) {
        config.*field = !json_get_or<bool>(file, name, otherwise, kHfConfigFile);
      },
      [=](const ModelConfig& config) { return !(config.*field); });
}

HfRows& HfRows::words(std::string_view key, std::vector<Word> words, std::string_view why) {
  const auto read = [=, name = std::string(key)](const Json& file, ModelConfig& config) {
    const auto given = json_get_or<std::string>(file, name, std::string(words.front().first), kHfConfigFile);
    std::vector<std::string> all;
    for (const auto& [word, field] : words) {
      all.push_back(fmt::format("\"{}\"", word));
      if (word != given) continue;
      if (field != nullptr) config.*field = true;
      return;
    }
    throw UserError(fmt::format("{}: {} is \"{}\", and only {} can be honoured", kHfConfigFile, name, given,
                                fmt::join(all, " and ")),
                    std::string(why));
  };
  return custom(key, read, [=](const ModelConfig& config) {
    for (const auto& [word, field] : words) {
      if (field != nullptr && config.*field) return word;
    }
    return words.front().first;
  });
}

HfRows& HfRows::only(std::string_view key, const Json& value, std::string_view why) {
  return fixed(key, value, why, hf_absent());
}

HfRows& HfRows::fixed(std::string_view key, const Json& value, std::string_view why, Written written) {
  return add({.key = std::string(key),
              .refuse = [=, name = std::string(key), why = std::string(why)](
                            const Json& json, std::string_view where) { refuse_unless(json, where, name, value, why); },
              .write = written.value_or(value)});
}

HfRows& HfRows::written(std::string_view key, HfValue value) {
  return add({.key = std::string(key), .write = std::move(value)});
}

HfRows& HfRows::custom(std::string_view key, Read read, HfValue written) {
  return add({.key = std::string(key),
              .read = [=](const Source& from) { read(from.json, from.config); },
              .write = std::move(written)});
}

HfRows& HfRows::then(std::function<void(ModelConfig&)> change) {
  return add({.read = [=](const Source& from) { change(from.config); }});
}

HfRows& HfRows::join(const HfRows& others) {
  for (const Row& row : others.rows_) add(row);
  return *this;
}

HfRows& HfRows::prepare(std::function<Json(const Json&)> change) {
  prepare_ = std::move(change);
  return *this;
}

void HfRows::read(const Json& file, std::string_view where, ModelConfig& config) const {
  const Json json = prepare_ ? prepare_(file) : file;
  for (const Row& row : rows_) {
    if (row.refuse) row.refuse(json, where);
  }
  for (const Row& row : rows_) {
    if (row.read) row.read({json, where, config});
  }
}

void HfRows::write(const ModelConfig& config, Json& json) const {
  for (const Row& row : rows_) {
    if (!row.write) continue;
    Json value = row.write(config);
    if (!value.is_discarded()) json[row.key] = std::move(value);
  }
}

}  // namespace megalith
