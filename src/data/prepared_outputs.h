// What finished outputs of `prepare` were made from: a file {output}.prepared lies beside their .bin and .idx, so that
// a later call neither replaces the tokens of other texts nor makes the same ones twice.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/prepare.h"

namespace megalith {

// The outputs when all of them are there as a finished run of this very job left them (see job_of), and nothing where
// they may be written. UserError when an output is there that was made otherwise, or of which nothing says how.
//
// is_repeatable  whether the job names all that it reads: standard input may be another text each time
std::optional<std::vector<PrepareReport::Output>> find_prepared(const std::vector<std::string>& prefixes,
                                                                const std::string& job, bool is_repeatable);

// What is wrong with training on a data set by a tokenizer, by the record beside it: it was made with another one.
// Nothing where this one does the same with all ids of that one (tokenizer_digest), and where there is no record.
//
// digests  of the tokenizer by their number of ids; made where they are needed and missing
std::optional<UserError> find_other_tokenizer(const std::string& prefix, const Tokenizer& tokenizer,
                                              std::map<int64_t, std::string>& digests);

// An error when the records beside these data sets name different tokenizers; those without a record are passed over.
std::optional<UserError> find_mixed_tokenizers(const std::vector<std::string>& prefixes);

// Before an output is replaced, and once it is there.
void forget_prepared(const std::string& prefix);
void record_prepared(const PrepareReport::Output& output, const std::string& job);

}  // namespace megalith
