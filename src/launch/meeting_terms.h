// Terms that all ranks of a run must share, compared when they meet: otherwise they would train different models or
// wait in different collectives.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace megalith {

enum class TermKind { kProgram, kOption, kVariable, kData };

struct Term {
  TermKind kind = TermKind::kOption;
  std::string name;
  std::string value;       // compared
  std::string shown = {};  // in messages; empty: the value
};

struct MeetingTerms {
  std::vector<Term> terms;  // empty: a failing rank, not to be compared
  std::string secret = {};  // of the store (launch/store_secret.h); empty: none
};

// The ranks differ. One of them reports for all.
class DifferentTerms : public UserError {
 public:
  DifferentTerms(const std::string& message, const std::string& remedy, bool is_speaker)
      : UserError(message, remedy), is_speaker_(is_speaker) {}
  bool is_speaker() const { return is_speaker_; }

 private:
  bool is_speaker_;
};

// Terms as text for the store, and back. Texts may be of other program versions: unknown parts are skipped.
std::string pack_terms(const std::vector<Term>& terms);
std::vector<Term> unpack_terms(std::string_view packed);

// 32 digits, equal for equal sequences of kinds, names and values.
std::string digest_of(const std::vector<Term>& terms);

// The message for ranks that differ.
//   digests  by rank; empty: an older program
//   terms    by digest
// returns lines: the difference, one line per term (at most a dozen) with values and ranks, the remedy
std::string difference_text(const std::vector<std::string>& digests,
                            const std::map<std::string, std::vector<Term>>& terms);

}  // namespace megalith
