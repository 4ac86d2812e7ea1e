// Terms that ranks must share, compared when they meet.
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
  std::string shown = {};  // in messages, if not the value
  bool is_of_checkpoint = false;  // filled in from the run's checkpoint; not told to others
};

struct MeetingTerms {
  std::vector<Term> terms;    // empty: of a rank that cannot begin, not compared
  std::string secret = {};    // the store's (store_secret.h); empty: none
  std::string no_begin = {};  // why the rank cannot begin: ranks with terms end
};

// The ranks' terms differ, or one of them cannot begin. One rank reports for all.
class DifferentTerms : public UserError {
 public:
  DifferentTerms(const std::string& message, const std::string& remedy, bool is_speaker)
      : UserError(message, remedy), is_speaker_(is_speaker) {}
  bool is_speaker() const { return is_speaker_; }

 private:
  bool is_speaker_;
};

// Skips unknown parts, from other program versions.
std::string pack_terms(const std::vector<Term>& terms);
std::vector<Term> unpack_terms(std::string_view packed);

// 32 digits of kinds, names and values in order.
std::string digest_of(const std::vector<Term>& terms);

//   digests  by rank; empty: an older program
//   terms    by digest
// returns lines: the difference, at most a dozen terms with values and ranks, the remedy
std::string difference_text(const std::vector<std::string>& digests,
                            const std::map<std::string, std::vector<Term>>& terms);

}  // namespace megalith
