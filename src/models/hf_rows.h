// A dictionary between Hugging Face's config.json and ours as rows, each of which reads, checks and writes a key.
//
//   HfRows()
//       .fixed("attention_bias", false, "biases in attention are not provided")
//       .required("hidden_size", &ModelConfig::hidden_size)
//       .field("num_experts", &ModelConfig::num_experts, 128, &ModelConfig::expert_count);
//
// Rows are read in order. A row replaces an earlier one of its key in place, so families start from shared rows.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"
#include "models/model_config.h"

namespace megalith {

inline constexpr std::string_view kHfConfigFile = "config.json";

// A constant, function of a configuration, or field; an unset optional is null.
class HfValue {
 public:
  template <typename T>
  HfValue(T value) {
    if constexpr (std::is_invocable_v<T, const ModelConfig&>) {
      of_ = [value](const ModelConfig& config) { return json_of(std::invoke(value, config)); };
    } else {
      of_ = [value = Json(std::move(value))](const ModelConfig&) { return value; };
    }
  }
  Json operator()(const ModelConfig& config) const { return of_(config); }

  template <typename T>
  static Json json_of(const T& value) {
    return value;
  }
  template <typename T>
  static Json json_of(const std::optional<T>& value) {
    return value ? Json(*value) : Json(nullptr);
  }

 private:
  std::function<Json(const ModelConfig&)> of_;
};

// A row's value for omitting its key.
inline Json hf_absent() { return Json(Json::value_t::discarded); }

class HfRows {
 public:
  // Numbers must be within their option's range; whole numbers are sizes, so at least 1.
  using Field = std::variant<bool ModelConfig::*, int64_t ModelConfig::*, double ModelConfig::*,
                             std::optional<int64_t> ModelConfig::*, std::optional<double> ModelConfig::*,
                             std::vector<int64_t> ModelConfig::*>;
  using Read = std::function<void(const Json& file, ModelConfig&)>;
  using Word = std::pair<std::string_view, bool ModelConfig::*>;

  using Written = std::optional<HfValue>;  // unset: the value read

  HfRows& required(std::string_view key, Field field, Written written = {});
  // A missing or null key means `otherwise`; if that is null too, the field stays unset.
  HfRows& field(std::string_view key, Field field, HfValue otherwise, Written written = {});
  // Null means `null`, and is also written for it; a missing key means `otherwise`.
  HfRows& nullable(std::string_view key, Field field, HfValue otherwise, HfValue null, Written written = {});
  HfRows& opposite(std::string_view key, bool ModelConfig::*field, bool otherwise);
  // Words that each set a switch, or none; a missing key is the first. Others are refused with the reason.
  HfRows& words(std::string_view key, std::vector<Word> words, std::string_view why);
  // Refuses any other value, before any row is read. only() writes nothing.
  HfRows& only(std::string_view key, const Json& value, std::string_view why);
  HfRows& fixed(std::string_view key, const Json& value, std::string_view why, Written written = {});
  HfRows& written(std::string_view key, HfValue value);  // not read
  HfRows& custom(std::string_view key, Read read, HfValue written = hf_absent());
  // Changes what earlier rows have read.
  HfRows& then(std::function<void(ModelConfig&)> change);
  template <typename Part, typename T>
  HfRows& always(T Part::*field, std::type_identity_t<T> value) {
    return then([=](ModelConfig& config) { config.*field = value; });
  }
  HfRows& join(const HfRows& others);
  // Changes a file before its rows are read; the last call wins.
  HfRows& prepare(std::function<Json(const Json& file)> change);

  // where: names the file, or the part these rows cover. UserError for the first key missing, wrong or not supported.
  void read(const Json& file, std::string_view where, ModelConfig& config) const;
  void write(const ModelConfig& config, Json& json) const;

 private:
  struct Source {
    const Json& json;
    std::string_view where;
    ModelConfig& config;
  };
  struct Row {
    std::string key;
    std::function<void(const Json&, std::string_view where)> refuse;
    std::function<void(const Source&)> read;
    std::function<Json(const ModelConfig&)> write;
  };
  static void read_field(const std::string& key, const Field& field, const Json& value, const Source& from);
  HfRows& add(Row row);

  std::function<Json(const Json&)> prepare_;
  std::vector<Row> rows_;
};

// A whole number that is no option, in [least, most]; a missing or null key means `otherwise`.
int64_t hf_integer(const Json& file, std::string_view key, int64_t otherwise, int64_t most, int64_t least = 1);

}  // namespace megalith
