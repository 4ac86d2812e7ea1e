// Stamps that distinguish a run's starts in files that several of them write.
#pragma once

#include <chrono>
#include <string>

namespace megalith {

// ISO 8601 in UTC: "2026-01-31T08:01:28.417Z".
std::string utc_timestamp(std::chrono::system_clock::time_point time = std::chrono::system_clock::now());

// A start's name: UTC time and four random digits, "20260131-080128-3fa9". Sorts by time.
std::string make_run_id();

}  // namespace megalith
