// Records of what finished outputs of `prepare` were made from, in {output}.prepared beside .bin and .idx: later calls
// neither overwrite other texts' tokens nor repeat work.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/prepare.h"

namespace megalith {

// The outputs if all are there from a finished run of this job (see job_of); nothing if they may be written. UserError
// for an existing output made otherwise or without a record.
//
// is_repeatable  the job names all it reads: standard input may differ each time
std::optional<std::vector<PrepareReport::Output>> find_prepared(const std::vector<std::string>& prefixes,
                                                                const std::string& job, bool is_repeatable);

// Error if a data set's record names a tokenizer other than this one. Nothing without a record, or if this one treats
// all ids of that one alike (tokenizer_digest).
//
// digests  of the tokenizer by number of ids; filled when needed
std::optional<UserError> find_other_tokenizer(const std::string& prefix, const Tokenizer& tokenizer,
                                              std::map<int64_t, std::string>& digests);

// Error if these data sets' records name different tokenizers; ignores those without a record.
std::optional<UserError> find_mixed_tokenizers(const std::vector<std::string>& prefixes);

// Call before replacing an output, and once it is there.
void forget_prepared(const std::string& prefix);
void record_prepared(const PrepareReport::Output& output, const std::string& job);

}  // namespace megalith
