// What tells the starts of runs apart in files that several of them write to.
#pragma once

#include <chrono>
#include <string>

namespace megalith {

// "2026-01-31T08:01:28.417Z": UTC, as ISO 8601 writes it.
std::string utc_timestamp(std::chrono::system_clock::time_point time = std::chrono::system_clock::now());

// A name for this start of the program: the time in UTC and four random digits, "20260131-080128-3fa9". Names sort by
// time.
std::string make_run_id();

}  // namespace megalith
