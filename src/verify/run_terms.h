// Texts on which ranks must agree (launch/meeting_terms.h): the program, options not exempt by ByRank, contents of
// named files, and variables that change numbers or protocols.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "config/yaml_document.h"
#include "launch/meeting_terms.h"
#include "train/config.h"

namespace megalith {

// Equal for files, folders and token files (a prefix of .bin and .idx) of equal contents, anywhere: sizes, and samples
// of at most 64 KiB per file, 64 files per folder, without subfolders. Empty for missing paths, pipes and devices.
std::string contents_digest(const std::filesystem::path& path);

// The communication library's choice.
std::vector<Term> back_end_terms(const at::Device& device);

//   program      the program's names and values, such as its commit
//   environment  after setup
std::vector<Term> run_terms(const Resolved& resolved, const at::Device& device,
                            const std::vector<std::pair<std::string, std::string>>& program,
                            const EnvironmentMap& environment);

}  // namespace megalith
