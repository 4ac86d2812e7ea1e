#include "launch/last_words.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <exception>
#include <nlohmann/json.hpp>

#include "config/environment.h"
#include "core/file.h"
#include "core/json.h"
#include "core/visible_text.h"
#include "launch/back_end_fault.h"
#include "launch/launch.h"

namespace megalith {

void leave_error_file(const EnvironmentMap& environment, std::string_view message) noexcept {
  try {
    const auto file = environment.find("TORCHELASTIC_ERROR_FILE");
    if (file == environment.end() || file->second.empty() || file->second == "/dev/null") return;
    const Json extra = {{"timestamp", std::to_string(std::time(nullptr))}};
    const Json said = {{"message", fmt::format("error: {}", message)}, {"extraInfo", extra}};
    write_file_atomic(file->second, dump_json(Json{{"message", said}}));
  } catch (const std::exception&) {
    // Standard error has the message anyway.
  }
}

void end_for_uncaught_exception() noexcept {
  try {
    std::string what = "no exception";
    try {
      if (const std::exception_ptr current = std::current_exception()) std::rethrow_exception(current);
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
      what = "an exception of an unknown type";
    }
    const EnvironmentMap environment = environment_snapshot();
    const std::string message = fmt::format("a thread of this process failed{}", translate_back_end_error(what).text());
    leave_error_file(environment, message);
    const Launch launch = discover_launch(environment);
    const std::string speaker = launch.world_size > 1 ? fmt::format("[rank {}] ", launch.rank) : "";
    std::fputs(visible_text(fmt::format("{}error: {}\n", speaker, message)).c_str(), stderr);
  } catch (...) {
    std::fputs("error: a thread of this process failed\n", stderr);
  }
  ::_exit(1);
}

}  // namespace megalith
