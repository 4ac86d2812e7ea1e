// What the ranks of a model that writes agree on: the first one hears, and all do the same.
#pragma once

#include <optional>
#include <string>

#include "comm/groups.h"
#include "train/config.h"

namespace megalith {

class TextRanks {
 public:
  // The groups outlive it.
  explicit TextRanks(const Groups& groups) : groups_(groups) {}

  bool is_first() const { return groups_.world->is_first(); }
  // The first rank's value on every rank.
  std::optional<std::string> share(std::optional<std::string> text) const;
  bool share(bool flag) const;

 private:
  const Groups& groups_;
};

// UserError where some ranks would be replicas of the model, which would all write the same text. Ranks that hold
// experts of their own are none, though they see the same tokens.
void check_writing_ranks(const Resolved& resolved);

}  // namespace megalith
