// The files by which AMD's cluster validation suite (CVS) describes its Megatron tests: a JSON of texts.
//
//   {"config": {"nnodes": "2", …}, "model_params": {"single_node": {"llama3_1_8b": {"mi300x": {…, "result_dict":
//   {…}}}}}}
//
// Every value is a text. Names are case-insensitive, and '-' and '.' are read as '_'. A name that begins with '_' is a
// note; `_example_x` shows what x may look like. `{user-id}` is the login name. `<changeme>` marks what the user must
// still fill in. Source: ROCm/cvs, its guide to the Megatron configuration files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"

namespace megalith {

// An object of texts; names are folded by cvs_name().
struct CvsTexts {
  std::map<std::string, std::string> values;
  std::map<std::string, std::string> examples;  // of _example_NAME, by NAME

  const std::string* find(const std::string& name) const;
};

struct CvsEntry {
  std::string mode, model, gpu;  // "single_node", "llama3_1_8b", "mi300x"
  CvsTexts params;
  CvsTexts results;  // result_dict

  std::string name() const { return mode + "/" + model + "/" + gpu; }
};

// How a threshold holds a measure: value >= bound, <= bound, within percent of it, at least bound times the
// reference's value, or not at all.
enum class CvsLimitKind { kMin, kMax, kWithin, kMinRatio, kInfo };
struct CvsLimit {
  CvsLimitKind kind = CvsLimitKind::kMin;
  double percent = 0;
  std::string reference;
};

// The least-squares slope of the losses at every sample_every-th step, the milestones, the first and the last one.
struct CvsLossCurve {
  int64_t sample_every = 10;
  std::vector<int64_t> milestones = {100, 500, 1000, 5000};
  double max_slope = 0;
  bool enforces = true;
};

// Added by today's files (cvs_sweep.h). Their entries are MODE/MODEL/RUN.
struct CvsSweep {
  std::vector<std::string> runs;  // as written
  bool enforces_thresholds = true;
  std::optional<CvsLossCurve> loss_curve;
  double baseline_tokens_per_s = 0;  // of all devices on baseline_nodes; 0 if unknown
  int64_t baseline_nodes = 1;
  std::map<std::string, std::map<std::string, CvsLimit>> limits;  // by folded run and measure
};

struct CvsConfig {
  std::string file;
  std::string trainer = "megatron";  // or torchtitan
  std::optional<CvsSweep> sweep;
  CvsTexts config;
  std::vector<std::string> device_list;                          // of container_config
  std::vector<std::pair<std::string, std::string>> volume_dict;  // host, container
  std::map<std::string, std::string> training_scripts;           // part of the tokenizer's name: script
  std::vector<CvsEntry> entries;
  std::vector<std::string> warnings;  // what was accepted but should be fixed
};

// "mi300X" is mi300x, "llama3.1-8b" is llama3_1_8b.
std::string cvs_name(std::string_view text);

bool is_unresolved(std::string_view text);  // contains <changeme>

// UserError with file, line and column if not JSON. A comma before a closing bracket becomes a warning: CVS's own page
// has two.
Json parse_cvs_json(std::string_view text, const std::string& file, std::vector<std::string>& warnings);

// UserErrors for every name or value unknown to CVS. A sweep's thresholds are read from the file beside `file`.
CvsConfig parse_cvs_config(std::string_view text, const std::string& file, const std::string& user);

// Applies the words of --set, NAME=VALUE: a name of `config`, of a case's parameters or of its result_dict, in every
// case. UserErrors for words without '=' and names unknown to CVS.
void set_cvs_values(CvsConfig& config, std::span<const std::string> words, const std::string& user);

}  // namespace megalith
