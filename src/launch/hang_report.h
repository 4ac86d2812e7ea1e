// The watchdogs' messages and report: ranks' states as JSON, the ranks at fault, the lines. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/collective_log.h"

namespace megalith {

std::string to_json(const RankStatus& status);
// UserError unless written by to_json().
RankStatus rank_status_from_json(std::string_view text);

// "rank 2 is gone: it ended without leaving a reason (killed, or out of memory?)".
std::string gone_text(const std::vector<int>& ranks);

// The text when rank 0, and the store with it, has ended. `ended` ranks on this machine may have followed it, unable to
// record that, so they are not blamed.
std::string gone_with_store_text(const std::vector<int>& ended);

// Ascending ranks: "rank 4", "ranks 0-3, 7".
std::string ranks_text(const std::vector<int>& ranks);

// "all_reduce dp grad bucket 0 12.0 KiB (#41)", # the sequence number in its group.
std::string collective_text(const CollectiveStatus& collective);

// "waiting in … for 6.2 s; last finished …, 7.4 s ago". A rank not waiting computes, reads or writes.
std::string state_text(const RankStatus& status);

// The ranks at fault, one finding a line and never empty, from the ranks that answered and those that did not (silent):
// * ranks that do not answer;
// * ranks that did not issue what others wait in, and wait in nothing;
// * ranks that issued a different collective from the others;
// * if none: peers of transfers that wait in nothing; then ranks that wait in a circle;
// * when every rank has issued what the others wait in: the network or a device.
std::vector<std::string> find_fault(const std::vector<RankStatus>& answered, const std::vector<int>& silent);

// One line per group of ranks in the same state, ordered by their first ranks.
std::vector<std::string> rank_lines(const std::vector<RankStatus>& answered, const std::vector<int>& silent);

}  // namespace megalith
