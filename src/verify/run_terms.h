// The named texts on which a run's ranks must agree (launch/meeting_terms.h): the program, every option not exempt by
// ByRank, contents of named files, and variables that change a library's numbers or protocol.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "config/yaml_document.h"
#include "launch/meeting_terms.h"
#include "train/config.h"

namespace megalith {

// Equal for files, folders and token files (a prefix of .bin and .idx) of equal contents, anywhere: sizes and at most
// 64 KiB per file, sampled. At most 64 files of a folder count, without subfolders. Empty for missing paths, pipes and
// devices.
std::string contents_digest(const std::filesystem::path& path);

// The choice of the ranks' communication library.
std::vector<Term> back_end_terms(const at::Device& device);

//   program      names and values of the program itself, such as its commit
//   environment  of this process, after setup
std::vector<Term> run_terms(const Resolved& resolved, const at::Device& device,
                            const std::vector<std::pair<std::string, std::string>>& program,
                            const EnvironmentMap& environment);

}  // namespace megalith
