// What must be the same on all ranks of a run, and what is said when it is not. Ranks that differ would train replicas
// of different models, or wait in different collectives: they compare when they meet, before the first collective.
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
  std::string value;       // what is compared
  std::string shown = {};  // in messages; empty: the value
};

// What a rank brings to the meeting.
struct MeetingTerms {
  std::vector<Term> terms;  // empty: a rank that fails anyhow, with which no other compares
  std::string secret = {};  // of the store (launch/store_secret.h); empty: none
};

// The ranks differ. One of them speaks for all.
class DifferentTerms : public UserError {
 public:
  DifferentTerms(const std::string& message, const std::string& remedy, bool is_speaker)
      : UserError(message, remedy), is_speaker_(is_speaker) {}
  bool is_speaker() const { return is_speaker_; }

 private:
  bool is_speaker_;
};

// Terms as one text for the store, and back. Texts of a newer or older program may be read: what is no term is skipped.
std::string pack_terms(const std::vector<Term>& terms);
std::vector<Term> unpack_terms(std::string_view packed);

// Equal for terms of the same kinds, names and values in the same order: 32 digits.
std::string digest_of(const std::vector<Term>& terms);

// What ranks that share no term's value are told.
//   digests  of each rank; empty: it brought none (an older program)
//   terms    of each digest
// returns the lines: the first says what differs, the last what to do. A line for each term, with its values and their
// ranks; terms beyond a dozen are counted.
std::string difference_text(const std::vector<std::string>& digests,
                            const std::map<std::string, std::vector<Term>>& terms);

}  // namespace megalith
