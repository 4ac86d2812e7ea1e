// The files by which AMD's cluster validation suite (CVS) describes its Megatron tests: a JSON of texts.
//
//   {"config": {"nnodes": "2", …}, "model_params": {"single_node": {"llama3_1_8b": {"mi300x": {…, "result_dict":
//   {…}}}}}}
//
// Every value is a text. Names are case-insensitive, and '-' and '.' are read as '_'. A name that begins with '_' is a
// note; `_example_x` shows what x may look like. `{user-id}` is the login name. `<changeme>` marks what the user must
// still fill in. Source: ROCm/cvs, its guide to the Megatron configuration files.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

struct CvsConfig {
  std::string file;
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

// UserError with file, line and column if not JSON; UserErrors for every name or value unknown to CVS. A comma before a
// closing bracket is a warning: CVS's own page has two.
CvsConfig parse_cvs_config(std::string_view text, const std::string& file, const std::string& user);

// Applies the words of --set, NAME=VALUE: a name of `config`, of a case's parameters or of its result_dict, in every
// case. UserErrors for words without '=' and names unknown to CVS.
void set_cvs_values(CvsConfig& config, std::span<const std::string> words, const std::string& user);

}  // namespace megalith
