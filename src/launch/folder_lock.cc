#include "launch/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/json.h"
#include "core/system_call.h"
#include "core/time.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLockFile = "lock.json";
constexpr std::string_view kHeirPrefix = "lock-after-";
constexpr const char* kUnreadable = "unreadable";
constexpr int kLongestChain = 100;  // each link is a run killed taking over
constexpr int kLooksInABeat = 5;

struct Link {
  fs::path path;
  std::string bytes;  // with the number
  FolderHolder holder;
};

bool is_run_id(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
}

FolderHolder parse_holder(const std::string& bytes, const std::string& where) {
  try {
    const Json json = parse_json(bytes, where);
    const auto text = [&](const char* name) { return json_get<std::string>(json, name, where); };
    FolderHolder holder{text("run_id"), text("host"), text("process"), text("since"), text("meeting")};
    if (is_run_id(holder.run_id)) return holder;
  } catch (const UserError&) {
    // Its writer was killed or is writing.
  }
  return {.run_id = kUnreadable, .host = {}, .process = {}, .since = {}, .meeting = {}};
}

Link read_link(fs::path path) {
  Link link{.path = std::move(path), .bytes = {}, .holder = {}};
  try {
    link.bytes = read_file(link.path);
  } catch (const UserError&) {
    // Gone, or a file system error: as if being written.
  }
  link.holder = parse_holder(link.bytes, link.path.string());
  return link;
}

fs::path heir_of(const fs::path& folder, const FolderHolder& holder) {
  return folder / fmt::format("{}{}.json", kHeirPrefix, holder.run_id);
}

std::optional<Link> find_end(const fs::path& folder) {
  std::optional<Link> end;
  fs::path next = folder / kLockFile;
  for (int i = 0; i < kLongestChain && is_there(next); ++i) {
    end = read_link(next);
    next = heir_of(folder, end->holder);
  }
  return end;
}

}  // namespace

std::string FolderHolder::text() const {
  if (run_id == kUnreadable) return fmt::format("a run whose {} cannot be read", kLockFile);
  // own_process(): "<boot>/<numbering> <process> <start>"
  const size_t begin = std::min(process.find(' '), process.size()), end = process.rfind(' ');
  const std::string number = begin < end ? process.substr(begin + 1, end - begin - 1) : "unknown";
  return fmt::format("run {} of host {} (process {}), since {}", run_id, host, number, since);
}

std::optional<FolderHolder> find_holder(const fs::path& folder) {
  const std::optional<Link> end = find_end(folder);
  return end ? std::optional(end->holder) : std::nullopt;
}

FolderHolder own_holder(std::string run_id, std::string meeting, std::string since) {
  return {std::move(run_id), host_name(), own_process(), std::move(since), std::move(meeting)};
}

FolderLock::FolderLock(fs::path folder, std::string what, FolderLockSettings settings)
    : folder_(std::move(folder)), what_(std::move(what)), settings_(std::move(settings)) {
  MEGALITH_CHECK(is_run_id(settings_.self.run_id), "a lock of run '{}'", settings_.self.run_id);
  for (fs::path missing = folder_; !missing.empty() && !is_there(missing); missing = missing.parent_path()) {
    made_folders_.push_back(missing);
  }
  try {
    make_directories(folder_);
    take();
  } catch (...) {  // a throwing constructor runs no destructor
    remove_made_folders();
    throw;
  }
  thread_ = std::thread([this] { beat(); });
}

FolderLock::~FolderLock() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wake_.notify_all();
  thread_.join();
  const fs::path path = folder_ / kLockFile;
  if (read_link(path).holder.run_id == settings_.self.run_id) ::unlink(path.c_str());
  close_descriptor(fd_);
  remove_made_folders();
}

void FolderLock::take() {
  Stopwatch stands_still;
  std::string seen_run, seen_bytes;
  bool has_noted = false;
  while (true) {
    const std::optional<Link> other = find_end(folder_);
    bool is_dead = false;
    if (other) {
      const ProcessState state = state_of_process(other->holder.process);
      const bool moves =
          state == ProcessState::kRuns || (state == ProcessState::kUnknown && seen_run == other->holder.run_id &&
                                           seen_bytes != other->bytes && seen_run != kUnreadable);
      if (moves && !settings_.waits) {
        throw UserError(fmt::format("{}: another run writes there: {}", what_, other->holder.text()),
                        "wait for its end (train does with --wait_for_folder), stop it, or name another folder");
      }
      if (seen_run != other->holder.run_id || seen_bytes != other->bytes) stands_still.restart();
      seen_run = other->holder.run_id;
      seen_bytes = other->bytes;
      is_dead = state == ProcessState::kEnded ||
                (state == ProcessState::kUnknown && stands_still.elapsed_s() >= settings_.patience_s);
      if (!is_dead) {
        if (!std::exchange(has_noted, true)) {
          settings_.note(state == ProcessState::kRuns
                             ? fmt::format("{}: waiting for the end of {}", what_, other->holder.text())
                             : fmt::format("{}: looking for up to {:.0f} s whether {} lives", what_,
                                           settings_.patience_s, other->holder.text()));
        }
        settings_.before_sleep();
        std::this_thread::sleep_for(std::chrono::duration<double>(settings_.beat_s / kLooksInABeat));
        continue;
      }
    }
    const fs::path place = other ? heir_of(folder_, other->holder) : folder_ / kLockFile;
    if (!try_make(place)) continue;
    const std::optional<Link> end = find_end(folder_);
    if (!end || end->path != place || end->holder.run_id != settings_.self.run_id) {
      drop(place);
      continue;
    }
    if (!other) return;
    rename_path(place, folder_ / kLockFile);
    for (const std::string& name : names_in(folder_)) {  // earlier holders' and latecomers'
      if (name.starts_with(kHeirPrefix)) ::unlink((folder_ / name).c_str());
    }
    return settings_.note(fmt::format("{}: taken over from {}, which has ended", what_, other->holder.text()));
  }
}

// False if it exists.
bool FolderLock::try_make(const fs::path& path) {
  fd_ = retry_interrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); });
  if (fd_ < 0 && errno == EEXIST) return false;
  if (fd_ < 0) {
    throw UserError(fmt::format("{}: {} cannot be made: {}", what_, path.string(), system_error_text(errno)),
                    "name a folder that can be written");
  }
  try {
    write();
  } catch (const UserError&) {
    drop(path);
    throw;
  }
  return true;
}

void FolderLock::drop(const fs::path& path) {
  ::unlink(path.c_str());
  close_descriptor(std::exchange(fd_, -1));
}

// Fixed length: no truncation, and a full disk has the block already.
void FolderLock::write() {
  const FolderHolder& self = settings_.self;
  const std::string bytes = fmt::format(
      "{{\"run_id\": {}, \"host\": {}, \"process\": {}, \"since\": {}, \"meeting\": {}, \"beat\": {:>20}}}\n",
      dump_json(Json(self.run_id)), dump_json(Json(self.host)), dump_json(Json(self.process)),
      dump_json(Json(self.since)), dump_json(Json(self.meeting)), num_beats_++);
  const ssize_t written = retry_interrupted([&] { return ::pwrite(fd_, bytes.data(), bytes.size(), 0); });
  const bool is_whole = written == std::ssize(bytes);
  if (!is_whole || retry_interrupted([&] { return ::fdatasync(fd_); }) != 0) {
    throw UserError(fmt::format("{}: {} cannot be written: {}", what_, kLockFile,
                                is_whole || written < 0 ? system_error_text(errno) : "the disk is full"),
                    "free some space, or name another folder");
  }
}

void FolderLock::beat() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::duration<double>(settings_.beat_s), [this] { return is_over_; })) {
    try {
      write();
    } catch (const UserError&) {
      // The next save will tell.
    }
    const std::optional<FolderHolder> holder = find_holder(folder_);
    if (!holder || holder->run_id == settings_.self.run_id || holder->run_id == kUnreadable) continue;
    return settings_.on_lost(*holder);
  }
}

void FolderLock::remove_made_folders() {
  for (const fs::path& folder : made_folders_) ::rmdir(folder.c_str());  // refuses non-empty folders
}

}  // namespace megalith
