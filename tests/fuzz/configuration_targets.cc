// Configuration files in YAML, JSON, and what options make of them.
#include <nlohmann/json.hpp>

#include "config/resolve.h"
#include "config/yaml_config.h"
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

}  // namespace

std::vector<Target> configuration_targets(const Scratch& scratch) { return {yaml(scratch), json(scratch)}; }

}  // namespace megalith::fuzz
