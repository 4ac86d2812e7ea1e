// A dictionary between Hugging Face's config.json and ours as rows: each reads a key, checks it and writes it.
//
//   HfRows()
//       .fixed("attention_bias", false, "biases in attention are not provided")
//       .required("hidden_size", &ModelConfig::hidden_size)
//       .field("num_experts", &ModelConfig::num_experts, 128, &ModelConfig::expert_count);
//
// Rows are read in their order. A row replaces an earlier one of its key, in its place, so a family takes shared rows
// and says only what differs.
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

// A constant, or what a function or a field of a configuration gives; an unset optional is null.
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

// What a row writes when its key is to be left out.
inline Json hf_absent() { return Json(Json::value_t::discarded); }

class HfRows {
 public:
  // Numbers are held to the range of their option. Whole numbers are sizes, so they are at least 1.
  using Field = std::variant<bool ModelConfig::*, int64_t ModelConfig::*, double ModelConfig::*,
                             std::optional<int64_t> ModelConfig::*, std::optional<double> ModelConfig::*,
                             std::vector<int64_t> ModelConfig::*>;
  using Read = std::function<void(const Json& file, ModelConfig&)>;
  using Word = std::pair<std::string_view, bool ModelConfig::*>;

  using Written = std::optional<HfValue>;  // unset: the value that was read

  // The same value in both, unless another is written.
  HfRows& required(std::string_view key, Field field, Written written = {});
  // A key that is missing or null stands for `otherwise`; where that is null too the field stays unset.
  HfRows& field(std::string_view key, Field field, HfValue otherwise, Written written = {});
  // Null differs from a missing key: it stands for `null`, which is also written as null.
  HfRows& nullable(std::string_view key, Field field, HfValue otherwise, HfValue null, Written written = {});
  HfRows& opposite(std::string_view key, bool ModelConfig::*field, bool otherwise);
  // Words that each set a switch, or none; a missing key is the first. Others are refused with the reason.
  HfRows& words(std::string_view key, std::vector<Word> words, std::string_view why);
  // Only this value can be honoured, which only() does not write. Checked before any row is read.
  HfRows& only(std::string_view key, const Json& value, std::string_view why);
  HfRows& fixed(std::string_view key, const Json& value, std::string_view why, Written written = {});
  HfRows& written(std::string_view key, HfValue value);  // not read
  // What is logic.
  HfRows& custom(std::string_view key, Read read, HfValue written = hf_absent());
  // Changes what the rows above have read.
  HfRows& then(std::function<void(ModelConfig&)> change);
  // What every model of the class has.
  template <typename Part, typename T>
  HfRows& always(T Part::*field, std::type_identity_t<T> value) {
    return then([=](ModelConfig& config) { config.*field = value; });
  }
  HfRows& join(const HfRows& others);
  // Changes a file before its rows are read; of several the last.
  HfRows& prepare(std::function<Json(const Json& file)> change);

  // where: names the file, or the part of it that these rows are about. UserError for the first key that is missing,
  // wrong or cannot be honoured.
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

// A whole number that is no option, from least to most; a missing key or null stands for `otherwise`.
int64_t hf_integer(const Json& file, std::string_view key, int64_t otherwise, int64_t most, int64_t least = 1);

}  // namespace megalith
