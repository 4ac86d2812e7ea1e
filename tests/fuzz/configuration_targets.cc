// Configuration files in YAML, JSON, and what options make of them.
#include <nlohmann/json.hpp>

#include "config/resolve.h"
#include "config/yaml_config.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "data/prepare.h"
#include "fuzz/mutate.h"
#include "fuzz/target.h"

namespace megalith::fuzz {
namespace {

const std::string kExperiment = R"(work_group: ${TEAM:amd}
exp_name: llama3.1_8B-pretrain
workspace: ./output
env: {NCCL_DEBUG: WARN, CACHE: "$HOME/cache-${USER:nobody}"}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: megatron/small.yaml
    overrides:
      vocab_size: 1000
      tiktoken_pattern: v1
      json_keys: [text, "more"]
      append_eod: true
)";
const std::string kFlat = R"(extends: [base.yaml]
input: &files [a.jsonl, 'b c']
workers: 2
output_prefix: ${OUT}
tokenizer_model: null
log_interval: 1000
json_keys: *files
)";
const std::string kPreset = "extends: base.yaml\nworkers: 3\nkeep_newlines: False\n";

Target yaml(const Scratch& scratch) {
  Target target{"yaml_config",
                {joined({kExperiment, kPreset, "tokenizer_type: ByteTokenizer\n"}),
                 joined({kFlat, kPreset, "includes: [other.yaml]\nworkers: 1\n"})},
                {"extends: ",
                 "bases: ",
                 "includes: ",
                 "[main.yaml]",
                 "base.yaml",
                 "&a ",
                 "*a",
                 "<<: ",
                 "- ",
                 "  ",
                 "${",
                 "${TEAM}",
                 "${TEAM:",
                 "!!binary ",
                 "|\n",
                 ">-\n",
                 "? ",
                 "---\n",
                 "%YAML 1.2\n",
                 "\t",
                 "modules:",
                 "env:",
                 "overrides:",
                 "model: ",
                 "workers: ",
                 "0x7f",
                 ".inf",
                 "~",
                 std::string(kBetweenFiles)},
                {},
                {}};
  const auto files_of = [](std::string_view input) { return divided(input, 3); };
  scratch.put("other.yaml", "log_interval: 7\n");
  scratch.put("configs/modules/other.yaml", "log_interval: 7\n");
  target.run = [&scratch, files_of](std::string_view input) {
    const auto files = files_of(input);
    const auto main = scratch.put("main.yaml", files[0]);
    scratch.put("base.yaml", files[2]);
    scratch.put("configs/modules/pre_trainer.yaml", files[1]);
    scratch.put("configs/modules/base.yaml", files[2]);
    scratch.put("configs/models/small.yaml", files[2]);
    PrepareOptions options;
    OptionSet set(options);
    ConfigInputs inputs;
    inputs.config_file = main;
    inputs.config_root = scratch.path("configs");
    inputs.environment = {{"TEAM", "ours"}, {"OUT", "out"}, {"HOME", "/home/ours"}};
    const Resolution resolution = try_resolve(set, inputs);
    for (const auto& option : set.options()) option->text();
    if (!resolution.errors.empty()) throw resolution.errors.front();
  };
  target.mutate = [words = target.words, files_of](const std::string& input, Random& random) {
    auto files = files_of(input);
    std::string& file = files[below(files.size(), random)];
    file = random() % 2 == 0 ? damaged_lines(file, words, random) : damaged_bytes(file, words, random);
    return joined(files);
  };
  return target;
}

Target json(const Scratch& scratch) {
  Target target{"json",
                {R"({"a": [1, -2.5e3, true, null, "é\u00e9\ud83e\udd99"], "b": {"c": 18446744073709551615}})"},
                {"{", "[", "\\u0000", "1e999", "\"", "//", "\xEF\xBB\xBF"},
                {},
                {}};
  target.run = [](std::string_view input) {
    const Json value = parse_json(input, "input");
    require(parse_json(dump_json(value), "written") == parse_json(dump_json_pretty(value), "written"),
            "what is written reads the same");
  };
  return target;
}

template <typename T>
void read_as(const Json& object, const char* key) {
  try {
    json_get<T>(object, key, "input");
  } catch (const UserError& error) {
    require(error.message().find(key) != std::string::npos, "the message names the key");
  }
}

// Every getter on values of every kind.
Target json_values() {
  Target target{
      "json_values", {R"({"a": 8, "b": 8.0, "c": true, "d": "text", "e": [1, 2], "f": [[1], [2.0]]})"}, {}, {}, {}};
  target.words = {"1e308", "-1e308", "1e19", "18446744073709551615", "9223372036854775808", "-9223372036854775808"};
  target.run = [](std::string_view input) {
    const Json object = parse_json(input, "input");
    for (const char* key : {"a", "b", "c", "d", "e", "f"}) {
      read_as<bool>(object, key);
      read_as<int>(object, key);
      read_as<int64_t>(object, key);
      read_as<uint64_t>(object, key);
      read_as<double>(object, key);
      read_as<std::string>(object, key);
      read_as<std::vector<int64_t>>(object, key);
      read_as<std::vector<double>>(object, key);
      read_as<std::vector<std::string>>(object, key);
      read_as<std::vector<std::vector<int64_t>>>(object, key);
      const Json* value = find_member(object, key, "input");
      if (value == nullptr) continue;
      const auto number = try_whole_number(*value);
      if (number) {
        require(json_as<int64_t>(*value, key) == *number, "both ways of reading give one number");
        if (constexpr int64_t kExact = int64_t{1} << 53; - kExact < *number && *number < kExact) {
          require(whole_number(static_cast<double>(*number), *number, *number, key) == *number, "it survives a double");
        }
      }
      require((try_text(*value) != nullptr) == value->is_string(), "texts are texts");
    }
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    return damaged_json(input, words, random);
  };
  return target;
}

}  // namespace

std::vector<Target> configuration_targets(const Scratch& scratch) {
  return {yaml(scratch), json(scratch), json_values()};
}

}  // namespace megalith::fuzz
