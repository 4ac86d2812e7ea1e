// What the watchdogs of a world tell one another and the user: each rank's state as JSON, which rank is at fault as far
// as the states show, and the lines of the report. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/collective_log.h"

namespace megalith {

std::string to_json(const RankStatus& status);
// UserError when it is not what to_json() wrote.
RankStatus rank_status_from_json(std::string_view text);

// "rank 2 is gone: it ended without leaving a reason (killed, or out of memory?)".
std::string gone_text(const std::vector<int>& ranks);

// The text for when rank 0 has ended, and with it the store that it served. `ended` are the ranks that have ended on
// this machine: they may have ended only because rank 0 did, and could not leave word of that, so they are not blamed.
std::string gone_with_store_text(const std::vector<int>& ended);

// Ascending ranks as a person writes them: "rank 4", "ranks 0-3, 7".
std::string ranks_text(const std::vector<int>& ranks);

// "all_reduce dp grad bucket 0 12.0 KiB (#41)", # the sequence number in its group.
std::string collective_text(const CollectiveStatus& collective);

// "waiting in … for 6.2 s; last finished …, 7.4 s ago". A rank that waits in none computes, reads or writes.
std::string state_text(const RankStatus& status);

// Who is at fault, one finding a line, from the ranks that answered and those that did not (silent):
// * ranks that do not answer;
// * ranks that did not issue what others wait in, and wait in nothing themselves;
// * ranks that issued another collective than the others in its place;
// * when there are none of these: peers of sends and receives that wait in nothing; then the ranks that wait for
//   something else than the others, a circle;
// * when every rank has issued what the others wait in: the network or a device.
// Never empty.
std::vector<std::string> find_fault(const std::vector<RankStatus>& answered, const std::vector<int>& silent);

// One line for the ranks in the same state, all ranks in order of the first of them.
std::vector<std::string> rank_lines(const std::vector<RankStatus>& answered, const std::vector<int>& silent);

}  // namespace megalith
