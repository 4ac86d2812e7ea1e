// Ranks meet: each registers in the store at MASTER_ADDR and waits for all. Contradictions show before a collective
// could hang.
//
//   megalith/<round>/world_size       the first arrival's
//                    rank/<r>         its process
//                    process/<r>      the same for rank_process.h, once the verdict is good
//                    network          the first arrival's, to see if all share a loopback interface
//                    terms/first      digest of the first arrival's terms (meeting_terms.h)
//                    terms/of/<r>     each rank's digest
//                    terms/list/<d>   the terms with this digest
//                    terms/differ     exists if digests differ
//                    terms/said       number of ranks that gave terms; older programs do not
//                    no_begin         the first rank that cannot begin, and why
//                    registered       number of ranks that came
//                    verdict          "1" when all have come, a contradiction, or the missing ranks
//                    terms/verdict    the difference, from the first rank that finds it
//   megalith_secret                   identifies the first arrival's secret, which seals all other keys
//   megalith_stranger                 exists if a rank with another secret came
//
// A launcher's store outlives the ranks, and its agents may disagree on the number of restarts: rank 0 opens a round at
// every start, others join the newest, and only rank 0 completes it. A killed rank's successor may complete an older
// round of ended ranks; no rank confirms that, and waiting continues.
#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "config/environment.h"
#include "core/error.h"
#include "core/host.h"
#include "core/sha256.h"
#include "launch/c10d_shared.h"
#include "launch/network.h"
#include "launch/patience.h"
#include "launch/port.h"
#include "launch/rank_process.h"

namespace megalith {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kGoodVerdict = "1", kLateVerdict = "late: ";
// The serving rank lets others read a contradiction this long.
constexpr auto kVerdictPatience = std::chrono::seconds(2);
// c10d waits forever for a reply once connected: give up this long after the time-out.
constexpr auto kReplyPatience = std::chrono::seconds(3);
constexpr Milliseconds kConfirmationPause{5};

std::vector<uint8_t> stored(std::string_view text) { return {text.begin(), text.end()}; }

// Returns the key's value now.
std::string set_if_absent(c10d::Store& store, const std::string& key, std::string_view text) {
  const std::vector<uint8_t> found = store.compareSet(key, {}, stored(text));
  return {found.begin(), found.end()};
}

// Silences c10d's call stacks and warnings.
class QuietC10d {
 public:
  QuietC10d() : level_(FLAGS_caffe2_log_level) { FLAGS_caffe2_log_level = c10::GLOG_FATAL; }
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

  // Not by an ending process, which may leave a thread in c10d.
  void restore() { FLAGS_caffe2_log_level = level_; }

 private:
  int level_;
};

class Meeting {
 public:
  //   admits_late  a process that comes after the ranks met may join them at a roll call (roll_call.h)
  Meeting(const Launch& launch, const MeetingTerms& terms, StorePointer open_store, Milliseconds timeout,
          bool admits_late)
      : launch_(launch),
        admits_late_(admits_late),
        terms_(terms.terms),
        no_begin_(terms.no_begin),
        open_store_(std::move(open_store)),
        root_(seal_store(open_store_, terms.secret)),
        deadline_(Clock::now() + timeout) {
    check_secret(terms.secret);
    name_ = fmt::format("process {} on {}", ::getpid(), host_name());
    network_ = network_identity();
  }

  // UserError: a contradiction. std::exception: the store is gone. False: some came too late.
  bool gather() {
    if (!launch_.has_agent_store) {
      enter(launch_.restart_count);
      if (comes_late()) return true;
      return register_self() && await_verdict() && agree_on_terms();
    }
    const int64_t newest = root_->add(kRoundKey, 0);
    if (newest > 0 && launch_.restart_count > 0) {
      enter(newest);
      if (comes_late()) return true;
    }
    int64_t round = launch_.rank == 0 ? root_->add(kRoundKey, 1) : newer_round_than(0);
    while (round > 0) {
      enter(round);
      // From before a restart.
      const bool is_over = store_->check({"verdict"});
      if (!is_over && register_self() && await_verdict()) return agree_on_terms();
      if (launch_.rank == 0) {
        if (!has_timed_out()) contradict("two processes are rank 0 of this run", "give each machine its own NODE_RANK");
        return false;
      }
      round = newer_round_than(round);
    }
    return false;
  }

  const StorePointer& store() const { return store_; }
  bool is_late() const { return is_late_; }
  bool has_several_hosts() { return store_->check({"several_networks"}); }

  std::vector<std::pair<int, std::string>> processes_here() {
    std::vector<std::pair<int, std::string>> processes;
    for (int rank = 0; rank < launch_.world_size; ++rank) {
      const std::vector<uint8_t> words = store_->get(fmt::format("process/{}", rank));
      std::string process(words.begin(), words.end());
      if (state_of_process(process) != ProcessState::kUnknown) processes.emplace_back(rank, std::move(process));
    }
    return processes;
  }

  // "rank 1 has not come"; empty if unknown.
  std::string missing() {
    const std::string ranks = missing_ranks();
    if (!open_store_->check({kStrangerKey})) return ranks;
    return ranks + " (a process with another store_secret_file, or without one, was refused)";
  }

 private:
  static constexpr const char* kRoundKey = "megalith/round";
  static constexpr const char* kSecretKey = "megalith_secret";
  static constexpr const char* kStrangerKey = "megalith_stranger";
  static constexpr std::string_view kNoTerms = "none";

  std::string missing_ranks() {
    if (!missing_.empty()) return missing_;
    if (store_ == nullptr) return "rank 0 has not come";
    std::vector<int> ranks;
    for (int rank = 0; rank < launch_.world_size; ++rank) {
      if (!store_->check({fmt::format("rank/{}", rank)})) ranks.push_back(rank);
    }
    if (ranks.empty()) return "";
    if (ranks.size() == 1) return fmt::format("rank {} has not come", ranks[0]);
    constexpr size_t kMostNamed = 8;
    const size_t num_named = std::min(ranks.size(), kMostNamed);
    return fmt::format("{} ranks have not come: {}{}", ranks.size(),
                       fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(num_named), ", "),
                       num_named < ranks.size() ? ", …" : "");
  }

  // Ranks with different secrets see none of each other's keys.
  void check_secret(const std::string& secret) {
    constexpr std::string_view kNone = "none";
    const std::string own = secret.empty() ? std::string(kNone) : hmac_sha256(secret, kSecretKey);
    const std::string first = set_if_absent(*open_store_, kSecretKey, own);
    if (first == own) return;
    open_store_->set(kStrangerKey, stored("1"));
    throw UserError(
        fmt::format("rank {} has {}, and the first rank that came to {}:{} has {}", launch_.rank,
                    secret.empty() ? "no store secret" : "a store secret", launch_.master_address, launch_.master_port,
                    first == kNone   ? "none"
                    : secret.empty() ? "one"
                                     : "another"),
        "give all ranks a --store_secret_file with the same text, or none");
  }

  void enter(int64_t round) {
    round_ = round;
    store_ = c10::make_intrusive<c10d::PrefixStore>(fmt::format("megalith/{}", round), root_);
  }

  bool has_timed_out() const { return Clock::now() >= deadline_; }

  // The first rank's terms where both say something: a checkpoint that --load finds by now fills in what was unset, or
  // had its default.
  void check_late_terms() {
    const std::string first = text_at("terms/first");
    if (first == digest_of(terms_)) return;
    for (const Term& theirs : unpack_terms(text_at("terms/list/" + first))) {
      for (const Term& own : terms_) {
        const bool is_same = own.kind == theirs.kind && own.name == theirs.name;
        const bool is_unset = own.value == "null" || theirs.value == "null";
        if (!is_same || is_unset || own.is_of_checkpoint || own.kind == TermKind::kData) continue;
        if (own.value == theirs.value) continue;
        throw UserError(fmt::format("rank {} has another {} than the run that it is to join: {}, and there {}",
                                    launch_.rank, own.name, own.value, theirs.value),
                        "start a replacement with the command of the ranks that run");
      }
    }
  }

  // True if the ranks of this round have met, with the same terms, and one of them may still run.
  bool comes_late() {
    if (!admits_late_ || !store_->check({"verdict"}) || text_at("verdict") != kGoodVerdict) return false;
    int64_t era = 0;
    while (store_->check({fmt::format("era/{}/verdict", era + 1)})) ++era;
    bool may_run = false;
    for (int rank = 0; rank < launch_.world_size && !may_run; ++rank) {
      const std::string key = era == 0 ? fmt::format("process/{}", rank) : fmt::format("era/{}/here/{}", era, rank);
      if (!store_->check({key})) continue;
      const std::string text = text_at(key);
      may_run = state_of_process(era == 0 ? text : text.substr(text.find(' ') + 1)) != ProcessState::kEnded;
    }
    if (!may_run) return false;
    if (!terms_.empty()) check_late_terms();
    is_late_ = true;
    return true;
  }

  // Waits longer each time; false after the time-out.
  bool pause() {
    if (has_timed_out()) return false;
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, Milliseconds(200));
    return true;
  }

  // 0 if none opens in time.
  int64_t newer_round_than(int64_t round) {
    do {
      const int64_t newest = root_->add(kRoundKey, 0);
      if (newest > round) return newest;
    } while (pause());
    return 0;
  }

  // False: a round from before a restart. (A launcher that serves the store numbers ranks uniquely.)
  bool register_self() {
    const std::string size = std::to_string(launch_.world_size);
    const std::string first_size = set_if_absent(*store_, "world_size", size);
    if (first_size != size) {
      if (launch_.has_agent_store) return false;
      contradict(fmt::format("rank {} ({}) was started in a world of {}, another rank in a world of {}", launch_.rank,
                             name_, size, first_size),
                 "start all ranks with the same number of them");
    }
    const std::string first = set_if_absent(*store_, fmt::format("rank/{}", launch_.rank), name_ + " " + network_);
    if (first != name_ + " " + network_) {
      if (launch_.has_agent_store) return false;
      contradict(fmt::format("rank {} was started twice: {}, and {}", launch_.rank,
                             first.substr(0, first.rfind(' ', first.rfind(' ') - 1)), name_),
                 "give each process its own RANK, and each machine its own NODE_RANK; or another run meets at the same "
                 "MASTER_ADDR and MASTER_PORT");
    }
    if (set_if_absent(*store_, "network", network_) != network_) store_->set("several_networks", stored("1"));
    store_->set(fmt::format("process/{}", launch_.rank), stored(own_process()));
    if (!no_begin_.empty()) {
      set_if_absent(*store_, "no_begin", fmt::format("rank {} cannot begin: {}", launch_.rank, no_begin_));
    }
    say_terms();
    const bool have_all_come = store_->add("registered", 1) == launch_.world_size;
    if (have_all_come && !launch_.has_agent_store) set_if_absent(*store_, "verdict", kGoodVerdict);
    return true;
  }

  void say_terms() {
    const std::string digest = terms_.empty() ? std::string(kNoTerms) : digest_of(terms_);
    if (!terms_.empty()) {
      const std::string list = "terms/list/" + digest;
      if (!store_->check({list})) store_->set(list, stored(pack_terms(terms_)));
      if (set_if_absent(*store_, "terms/first", digest) != digest) store_->set("terms/differ", stored("1"));
    }
    store_->set(fmt::format("terms/of/{}", launch_.rank), stored(digest));
    store_->add("terms/said", 1);
  }

  std::string text_at(const std::string& key) {
    const std::vector<uint8_t> bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }

  // One of the ranks with terms does.
  bool speaks_for_all() {
    const std::string own = std::to_string(launch_.rank);
    return set_if_absent(*store_, "terms/speaker", own) == own;
  }

  // Such a rank may have left before others come. Throws DifferentTerms on ranks with terms.
  void heed_ranks_that_cannot_begin() {
    if (terms_.empty() || !store_->check({"no_begin"})) return;
    const std::string reason = text_at("no_begin");
    const bool is_speaker = speaks_for_all();
    let_others_read();
    throw DifferentTerms(reason, "the other ranks end too; start them again together", is_speaker);
  }

  // Call once all have come. Throws DifferentTerms on all ranks with terms.
  bool agree_on_terms() {
    const bool have_all_said = store_->add("terms/said", 0) >= launch_.world_size;
    heed_ranks_that_cannot_begin();
    if (terms_.empty() || (have_all_said && !store_->check({"terms/differ"}))) return true;
    const bool is_speaker = speaks_for_all();
    if (is_speaker) store_->set("terms/verdict", stored(terms_verdict()));
    pause_ = kConfirmationPause;
    while (!store_->check({"terms/verdict"}) && pause()) {
    }
    const bool is_known = store_->check({"terms/verdict"});
    const std::string verdict = is_known ? text_at("terms/verdict") : "the ranks of this run have different options";
    let_others_read();
    const size_t line_end = std::min(verdict.find('\n'), verdict.size());
    throw DifferentTerms(verdict.substr(0, line_end), verdict.substr(std::min(line_end + 1, verdict.size())),
                         is_speaker || !is_known);
  }

  std::string terms_verdict() {
    std::vector<std::string> digests;
    std::map<std::string, std::vector<Term>> terms;
    for (int rank = 0; rank < launch_.world_size; ++rank) {
      const std::string key = fmt::format("terms/of/{}", rank);
      digests.push_back(store_->check({key}) ? text_at(key) : "");
      const std::string& digest = digests.back();
      if (digest.empty() || digest == kNoTerms || terms.contains(digest)) continue;
      terms[digest] = unpack_terms(text_at("terms/list/" + digest));
    }
    return difference_text(digests, terms);
  }

  void confirm() {
    if (!launch_.has_agent_store || launch_.rank != 0) return;
    pause_ = kConfirmationPause;
    if (store_->add("registered", 0) == launch_.world_size) set_if_absent(*store_, "verdict", kGoodVerdict);
  }

  // False: too late, or a newer round opened.
  bool await_verdict() {
    for (confirm(); !store_->check({"verdict"}); confirm()) {
      heed_ranks_that_cannot_begin();
      if (launch_.has_agent_store && root_->add(kRoundKey, 0) > round_) return false;
      if (pause()) continue;
      if (launch_.has_agent_store) return false;
      // A serving rank leaving first would seem at fault: all give up together.
      set_if_absent(*store_, "verdict", std::string(kLateVerdict) + missing_ranks());
    }
    const std::vector<uint8_t> bytes = store_->get("verdict");
    const std::string verdict(bytes.begin(), bytes.end());
    if (verdict == kGoodVerdict) return true;
    if (!verdict.starts_with(kLateVerdict)) fail(verdict);
    missing_ = verdict.substr(kLateVerdict.size());
    let_others_read();
    return false;
  }

  [[noreturn]] void contradict(const std::string& what, const std::string& remedy) {
    const std::string text = what + '\n' + remedy;
    // If others have met already, only this rank fails.
    set_if_absent(*store_, "verdict", text);
    fail(text);
  }

  void let_others_read() {
    const bool serves = launch_.rank == 0 && !launch_.has_agent_store;
    const auto end = Clock::now() + kVerdictPatience;
    try {
      store_->add("verdict_read", 1);
      while (serves && store_->add("verdict_read", 0) < launch_.world_size && Clock::now() < end) {
        std::this_thread::sleep_for(Milliseconds(5));
      }
    } catch (const std::exception&) {
      // The server left first.
    }
  }

  [[noreturn]] void fail(const std::string& verdict) {
    let_others_read();
    const size_t line_end = verdict.find('\n');
    throw UserError(verdict.substr(0, line_end), verdict.substr(line_end + 1));
  }

  const Launch& launch_;
  bool admits_late_, is_late_ = false;
  const std::vector<Term>& terms_;
  const std::string& no_begin_;
  StorePointer open_store_;  // shared by all
  StorePointer root_, store_;
  Clock::time_point deadline_;
  Milliseconds pause_{5};
  int64_t round_ = 0;
  std::string name_, network_, missing_;
};

struct Met {
  StorePointer store;   // of this round; null: some came too late
  std::string missing;  // ranks
  bool has_several_hosts = false, is_late = false;
  std::vector<std::pair<int, std::string>> processes_here;
  std::shared_ptr<SharedBoard> board;
};

// All store requests before the first collective.
Met meet_at(const Launch& launch, const MeetingTerms& terms, const StorePointer& root, Milliseconds timeout,
            bool admits_late) {
  Meeting meeting(launch, terms, root, timeout, admits_late);
  if (!meeting.gather()) return {.store = nullptr, .missing = meeting.missing()};
  return {.store = meeting.store(),
          .missing = "",
          .has_several_hosts = meeting.has_several_hosts(),
          .is_late = meeting.is_late(),
          .processes_here = meeting.processes_here(),
          .board = open_board(*meeting.store())};
}

// c10d's server writes through libuv, which leaves SIGPIPE to the program; a killed rank must fail only its connection.
void survive_closed_connections() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace

StorePointer C10dWorld::Shared::open_store(const NetworkChoice& network) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.master_port);
  options.timeout = timeout / 2;  // c10d retries after it
  options.isServer = !launch.has_agent_store && launch.rank == 0;
  options.waitWorkers = false;
  if (options.isServer && network.owns_meeting_address) {
    // The default is all of the machine's addresses.
    options.masterListenFd = listen_on(network.meeting_address, launch.master_port);
  }
  return c10::make_intrusive<c10d::TCPStore>(network.meeting_address, options);
}

std::string C10dWorld::Shared::place() const {
  return fmt::format("{}:{} (MASTER_ADDR, MASTER_PORT)", launch.master_address, launch.master_port);
}

CommunicationError C10dWorld::Shared::not_met(const std::string& reason, const std::string& remedy) const {
  return CommunicationError(fmt::format("the {} ranks did not meet at {} within {}: {}\n  {}", launch.world_size,
                                        place(), timeout_text(), reason, remedy));
}

StorePointer C10dWorld::Shared::reach_store(const NetworkChoice& network) {
  std::string reason;
  try {
    const auto store =
        within(timeout + kReplyPatience, [self = shared_from_this(), network] { return self->open_store(network); });
    if (store) return *store;
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).find("in use") != std::string_view::npos) {
      throw port_in_use("", launch.master_port);
    }
    reason = ": " + fault_of(error).cause;
  }
  const bool serves = launch.rank == 0 && !launch.has_agent_store;
  const std::string server = launch.has_agent_store ? "the launcher" : "rank 0";
  if (!serves && accepts_connections(network.meeting_address, launch.master_port, kVerdictPatience)) {
    const std::string owner = network.owns_meeting_address ? port_owner(launch.master_port) : "";
    throw not_met(fmt::format("something listens there{}, but does not speak as the store in which ranks meet",
                              owner.empty() ? "" : fmt::format(", {}", owner)),
                  fmt::format("see what {} says: another program may have its port (set MASTER_PORT to one that is "
                              "free on that machine), or it is stopped",
                              server));
  }
  throw not_met(serves ? "the store in which they meet does not answer" + reason
                       : server + " has not come, or cannot be reached" + reason);
}

void C10dWorld::Shared::meet() {
  const bool uses_gpus = !device.is_cpu();
  const NetworkChoice network = choose_network(launch, uses_gpus, environment_snapshot(), this_host());
  QuietC10d quiet;
  survive_closed_connections();
  const StorePointer root = reach_store(network);
  const std::string server = launch.has_agent_store ? "the launcher" : "rank 0";
  const auto gone = [&](const std::string& why) {
    return CommunicationError(fmt::format("{} is gone: it ended while the {} ranks were meeting at {}{}", server,
                                          launch.world_size, place(), why));
  };
  std::optional<Met> met;
  try {
    met = within(timeout + kVerdictPatience + kReplyPatience, [self = shared_from_this(), root] {
      return meet_at(self->launch, self->terms, root, self->timeout, self->tolerance.is_on);
    });
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw gone(fault_of(error).text());
  }
  if (!met) {
    // A stopped process keeps its port.
    if (!accepts_connections(network.meeting_address, launch.master_port, kVerdictPatience))
      throw gone("\n  cause: nobody takes connections there any more");
    throw not_met(
        fmt::format("{}, which serves the ranks' store, does not answer any more (stopped, or its host is "
                    "gone?)",
                    server));
  }
  if (met->store == nullptr) throw not_met(met->missing);
  quiet.restore();
  this->root = root;
  // Its own connection: an abandoned thread may wait on the other.
  if (tolerance.is_on) round = met->store->clone();
  is_late = met->is_late;
  // Words of a process that joins are not the ranks'.
  store = met->store;
  if (is_late) store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("late/{}", seat), store);
  processes_here = met->processes_here;
  board = met->board;
  store->setTimeout(timeout);
  const NetworkUse use = network_use(network, uses_gpus, met->has_several_hosts);
  notes = network.notes;
  if (!use.note.empty()) notes.push_back(use.note);
  const char* named = std::getenv(uses_gpus ? "NCCL_SOCKET_IFNAME" : "GLOO_SOCKET_IFNAME");
  const bool is_named = named != nullptr && *named != '\0';
  interface = is_named ? named : met->has_several_hosts ? network.interface : "lo";
  if (!use.nccl_interface.empty()) ::setenv("NCCL_SOCKET_IFNAME", ("=" + use.nccl_interface).c_str(), /*overwrite=*/0);
#ifdef MEGALITH_GLOO
  if (!uses_gpus) {
    gloo_options = c10d::ProcessGroupGloo::Options::create(backend_timeout);
    for (const std::string& address : use.gloo_addresses) {
      gloo_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    }
  }
#endif
}

}  // namespace megalith
