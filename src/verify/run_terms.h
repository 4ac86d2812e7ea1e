// What the ranks of a run must have in common, as a list of named texts for their meeting (launch/meeting_terms.h): the
// program, every option that does not say otherwise (ByRank), contents of the files that options name, and variables
// that change a library's numbers or protocol.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "config/yaml_document.h"
#include "launch/meeting_terms.h"
#include "train/config.h"

namespace megalith {

// Equal for files, folders and token files (a prefix of .bin and .idx) with the same contents, wherever they are: their
// sizes, and at most 64 KiB of each file, spread over it. At most 64 files of a folder count, and none within its
// folders. Empty for what is not there, and for pipes and devices.
std::string contents_digest(const std::filesystem::path& path);

// What decides over which library ranks talk.
std::vector<Term> back_end_terms(const at::Device& device);

//   program      names and values of the program itself, such as its commit
//   environment  of this process, after it was set up
std::vector<Term> run_terms(const Resolved& resolved, const at::Device& device,
                            const std::vector<std::pair<std::string, std::string>>& program,
                            const EnvironmentMap& environment);

}  // namespace megalith
