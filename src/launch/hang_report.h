// The watchdogs' report. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/collective_log.h"

namespace megalith {

std::string to_json(const RankStatus& status);
// UserError unless from to_json().
RankStatus rank_status_from_json(std::string_view text);

std::string gone_text(const std::vector<int>& ranks);

// For rank 0's end, and the store's: `ended` ranks here may have followed, unable to say so.
std::string gone_with_store_text(const std::vector<int>& ended);

// "rank 4", "ranks 0-3, 7"; ascending.
std::string ranks_text(const std::vector<int>& ranks);

// With the group's sequence number: "… (#41)".
std::string collective_text(const CollectiveStatus& collective);

std::string state_text(const RankStatus& status);

// The ranks at fault, a finding per line, never empty:
// * silent ranks;
// * ranks that neither issued what others wait in nor wait;
// * ranks that issued a different collective;
// * else peers of transfers that do not wait; else ranks waiting in a circle;
// * else, all having issued what others wait in: the network or a device.
std::vector<std::string> find_fault(const std::vector<RankStatus>& answered, const std::vector<int>& silent);

// A line per group of ranks in the same state, by first rank.
std::vector<std::string> rank_lines(const std::vector<RankStatus>& answered, const std::vector<int>& silent);

}  // namespace megalith
