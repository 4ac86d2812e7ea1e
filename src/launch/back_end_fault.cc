// Sources: gloo/transport/tcp (pair.cc, unbound_buffer.cc, error.h), gloo/rendezvous; torch/csrc/distributed/c10d
// (socket.cpp, TCPStore.cpp, TCPStoreBackend.cpp, Utils.hpp); NCCL's src/misc/ and init.cc.
#include "launch/back_end_fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <string>

#include "core/strings.h"

namespace megalith {
namespace {

constexpr const char* kSeeOthers =
    "see what the rank at its other end said last, and the kernel's log of its machine (dmesg)";
constexpr const char* kSlowOrGone =
    "see what the other ranks do; if they are only slow, raise --distributed_timeout_minutes";
constexpr const char* kSeeNetwork =
    "see that the machines reach one another over the interface that was chosen, and that no firewall is between them; "
    "'megalith doctor' tries it";

struct FaultRow {
  const char* pattern;  // ECMAScript, anywhere in the first line
  const char* cause;    // $1, $2: the pattern's groups
  const char* remedy;
};

// The first match counts.
constexpr FaultRow kFaultRows[] = {
    {R"(closed by peer \[([^\]]+)\]:(\d+))", "the connection to $1 port $2 was closed at its other end", kSeeOthers},
    {R"(\[([^\]]+)\]:(\d+): (?:Connection reset by peer|Broken pipe))",
     "the connection to $1 port $2 was closed at its other end", kSeeOthers},
    {R"(\[([^\]]+)\]:(\d+): Connection refused)", "nobody listens at $1 port $2, where a rank was to be", kSeeOthers},
    {R"((?:got|sent) 0 bytes)", "the connection to the ranks' store was closed at its other end", kSeeOthers},
    {R"(timed out after (\d+ms) while trying to connect to \(([^,]+), (\d+)\))",
     "no connection to $2 port $3 came about", kSeeNetwork},
    {R"(network addresses of \(([^,]+), \d+\) cannot be retrieved)", "nobody knows an address of the host $1",
     "make the name known on this machine (/etc/hosts, DNS), or give an address"},
    {R"([Tt]imed out waiting (\d+ms) for recv)", "nothing came from another rank for $1", kSlowOrGone},
    {R"([Tt]imed out waiting (\d+ms) for send)", "another rank took nothing of what was sent to it for $1",
     kSlowOrGone},
    {R"([Ww]ait timeout after (\d+ms))", "a rank left no word in the ranks' store for $1", kSlowOrGone},
    {R"((\d+) vs (\d+)\. Received data size)", "another rank sent $1 bytes where this one expects at most $2",
     "the ranks are at different places of a step, which is a fault of the program: please report it"},
    {R"([Cc]onnect timeout|timed out connecting)", "another rank did not take up a connection in time", kSlowOrGone},
    {R"(Ping failed|invalid value returned from server)", "what listens there does not speak as the ranks' store",
     "see which program has that port; set MASTER_PORT to a free one"},
    {R"(Connection refused)", "nobody listens where another rank was to be", kSeeOthers},
    {R"(EADDRINUSE|[Aa]ddress already in use)", "another program has that address and port",
     "take a free port (MASTER_PORT)"},
    {R"(Name or service not known|name resolution|resolve hostname|look up the IP address)",
     "nobody knows an address of a host", "make its name known on this machine (/etc/hosts, DNS), or give an address"},
    {R"(No route to host|unreachable)", "no way leads to another rank's machine", kSeeNetwork},
    {R"(Too many open files)", "this process may open no more files and connections",
     "raise the limit of open files (ulimit -n) on every machine"},
    {R"(remote process exit|ncclRemoteError)", "another rank ended, or the network between the ranks failed",
     kSeeOthers},
    {R"(unhandled system error|ncclSystemError)", "a call to the system failed inside NCCL or RCCL",
     "set NCCL_DEBUG=WARN for the next start: it names the call"},
    {R"(unhandled cuda error|ncclUnhandledCudaError)", "a GPU or its driver failed inside NCCL or RCCL",
     "see the kernel's log (dmesg), and run 'megalith doctor'"},
    {R"(reset by peer|Broken pipe|[Cc]onnection (?:was )?(?:likely )?closed|closed the connection|[Ss]ocket closed)",
     "a connection was closed at its other end", kSeeOthers},
    {R"([Tt]imed out|[Tt]imeout)", "an answer did not come in time", kSlowOrGone},
};

// Beginnings of a library's advice, guesses and source locations.
constexpr std::string_view kEndsOfFacts[] = {
    "This is typically",
    "this may indicate",
    "This may indicate",
    "Check the logs",
    "GLHF",
    "Did the remote",
    "Likely cause",
    "Exception raised",
    "Original exception",
    "Last error:",
    "most recent call",
    "(see http",
    "See http",
    "http://",
    "https://",
    "Please ",
};

// "[file.cc:12] ", "[enforce fail at file.cc:12] ".
const std::regex& source_place() {
  static const std::regex place(R"(\[[^\[\]]*\.(?:cc|cpp|cu|h|hpp|hh):\d+\]\s*)");
  return place;
}

// "5000ms" becomes "5.00 s".
std::string with_readable_times(std::string text) {
  static const std::regex milliseconds(R"((\d{1,12})ms)");
  std::smatch found;
  while (std::regex_search(text, found, milliseconds)) {
    text = found.prefix().str() + format_duration(std::stod(found[1].str()) / 1e3) + found.suffix().str();
  }
  return text;
}

std::string bare_facts(std::string line) {
  constexpr size_t kLongest = 300;
  for (const std::string_view end : kEndsOfFacts) line = line.substr(0, line.find(end));
  line = std::regex_replace(line, source_place(), "");
  // Some terminals and log collectors cannot show these.
  std::erase_if(line, [](char c) { return c < 0x20 || c >= 0x7f; });  // signed char: non-ASCII is negative
  line = std::string(trim(line));
  while (!line.empty() && std::string_view(" .,;:!([").find(line.back()) != std::string_view::npos) line.pop_back();
  if (line.size() > kLongest) line = line.substr(0, kLongest) + " ...";
  return line.empty() ? "the library that moves the data gave no reason" : line;
}

}  // namespace

std::string BackEndFault::text() const { return fmt::format("\n  cause: {}\n  {}", cause, remedy); }

BackEndFault translate_back_end_error(std::string_view message) {
  // std::regex recurses per character.
  constexpr size_t kMostRead = 2000;
  const std::string line(trim(message).substr(0, std::min(trim(message).find('\n'), kMostRead)));
  for (const FaultRow& row : kFaultRows) {
    std::smatch found;
    if (!std::regex_search(line, found, std::regex(row.pattern))) continue;
    return {.cause = with_readable_times(found.format(row.cause)), .remedy = row.remedy};
  }
  return {.cause = bare_facts(line), .remedy = "see what the other ranks say"};
}

}  // namespace megalith
