// The keys of torchtitan's job files: what each is without a word of the file, and what becomes of it here.
//
// Source: torchtitan v0.2.2, torchtitan/config/job_config.py; a few names of v0.1 stand beside them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class JobKeyKind {
  kOption,         // one option of ours: `text`
  kRule,           // read by a rule of torchtitan_job.cc
  kNoCounterpart,  // changes nothing here, and is named
  kRefused,        // an error unless it is as it would be without a word: `text` says what it asks for
};

struct JobKey {
  std::string_view name;  // "training.steps"; with ".*" at its end all keys below
  JobKeyKind kind;
  std::string_view fallback;  // torchtitan's own value; "" is unset
  std::string_view text;
};

// Null when torchtitan has no such key.
const JobKey* find_job_key(std::string_view name);
// For the nearest name.
std::vector<std::string> job_key_names();

}  // namespace megalith
