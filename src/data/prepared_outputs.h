// What finished outputs of `prepare` were made from: a file {output}.prepared lies beside their .bin and .idx, so that
// a later call neither replaces the tokens of other texts nor makes the same ones twice.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/prepare.h"

namespace megalith {

// The outputs when all of them are there as a finished run of this very job left them (see job_of), and nothing where
// they may be written. UserError when an output is there that was made otherwise, or of which nothing says how.
//
// is_repeatable  whether the job names all that it reads: standard input may be another text each time
std::optional<std::vector<PrepareReport::Output>> find_prepared(const std::vector<std::string>& prefixes,
                                                                const std::string& job, bool is_repeatable);

// Before an output is replaced, and once it is there.
void forget_prepared(const std::string& prefix);
void record_prepared(const PrepareReport::Output& output, const std::string& job);

}  // namespace megalith
