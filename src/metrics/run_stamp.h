// Stamps that distinguish a run's starts.
#pragma once

#include <chrono>
#include <string>

namespace megalith {

// "2026-01-31T08:01:28.417Z" (ISO 8601).
std::string utc_timestamp(std::chrono::system_clock::time_point time = std::chrono::system_clock::now());

// UTC time and four random digits, "20260131-080128-3fa9"; sorts by time.
std::string make_run_id();

}  // namespace megalith
