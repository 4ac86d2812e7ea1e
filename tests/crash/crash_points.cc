// See crash_points.h.
//
// The functions of libc are defined under other names here (asm labels give them their own), so that no header's
// declaration, inline form or attribute gets in the way.
#include "crash_points.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string_view>

#include "disk_model.h"
#include "faults.h"

namespace megalith::test {
namespace fs = std::filesystem;
namespace {

constexpr int kCrashed = 77, kFailed = 78;

// A child's report to its parent.
struct Report {
  char change[1000];
  char failure[1000];
};

void put(char (&to)[1000], const std::string& text) { std::snprintf(to, sizeof(to), "%s", text.c_str()); }

class Watch {
 public:
  Watch(const CrashPoint& point, Report& report) : point_(point), report_(report), disk_(point.root) {}

  bool covers(const fs::path& path) const {
    const std::string text = path.string(), root = point_.root.string();
    return text.starts_with(root) && (text.size() == root.size() || text[root.size()] == '/');
  }
  bool can_exchange() const { return point_.can_exchange; }
  DiskModel& disk() { return disk_; }

  // Makes one change, or ends the process there.
  template <typename Result>
  Result run(std::string_view name, const fs::path& path, const std::function<Result()>& call,
             const std::function<void()>& note) {
    const std::lock_guard lock(mutex_);
    const bool is_here = next_++ == point_.number;
    if (is_here) put(report_.change, std::string(name) + " " + path.lexically_relative(point_.root).string());
    if (is_here && !point_.is_after) end(kCrashed);
    const Result result = call();
    const int error_number = errno;
    if (result >= 0) {
      try {
        note();
      } catch (const std::exception& error) {
        fail(std::string(name) + " " + path.string() + ": " + error.what());
      }
    }
    if (is_here) end(kCrashed);
    errno = error_number;
    return result;
  }

  [[noreturn]] void fail(const std::string& why) {
    put(report_.failure, why);
    ::_exit(kFailed);
  }

  [[noreturn]] void end(int code) {
    try {
      const std::string difference = disk_.difference_from_disk();
      if (!difference.empty()) fail("a change was not seen: " + difference);
      std::mt19937 random(static_cast<unsigned>(point_.number * 1009 + point_.seed));
      disk_.lose(point_.loss, random);
    } catch (const std::exception& error) {
      fail(error.what());
    }
    ::_exit(code);
  }

 private:
  const CrashPoint& point_;
  Report& report_;
  DiskModel disk_;
  std::mutex mutex_;
  int next_ = 0;
};

// The interposed functions can reach nothing else.
Watch* g_watch = nullptr;  // set in children
bool g_flushes = true;
thread_local bool t_is_inside = false;  // calls of the watch itself are not watched

struct Inside {
  Inside() { t_is_inside = true; }
  ~Inside() { t_is_inside = false; }
};

bool is_watching() { return g_watch != nullptr && !t_is_inside; }

fs::path path_of(int fd) {
  char text[4096];
  const ssize_t size = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), text, sizeof(text));
  return size <= 0 ? fs::path() : fs::path(std::string(text, static_cast<size_t>(size)));
}

fs::path path_at(int folder, const char* path) {
  const fs::path given(path);
  if (given.is_absolute()) return given.lexically_normal();
  return ((folder == AT_FDCWD ? fs::current_path() : path_of(folder)) / given).lexically_normal();
}

// Calls the real function, and counts it if the path is below the watched folder.
template <typename Result, typename Call, typename Note>
Result change(std::string_view name, const fs::path& path, const Call& call, const Note& note) {
  const Inside inside;
  if (!g_watch->covers(path)) return call();
  return g_watch->run<Result>(name, path, call, [&] { note(g_watch->disk()); });
}

void refuse(std::string_view name, const fs::path& path) {
  const Inside inside;
  if (g_watch->covers(path)) g_watch->fail(std::string(name) + " " + path.string() + " is not modelled");
}

}  // namespace

WithoutFlushes::WithoutFlushes() { g_flushes = false; }
WithoutFlushes::~WithoutFlushes() { g_flushes = true; }

Crash crash_at(const CrashPoint& point, const std::function<void()>& body) {
  void* memory = ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory to share");
  const std::unique_ptr<Report, void (*)(Report*)> report(new (memory) Report{},
                                                          [](Report* shared) { ::munmap(shared, sizeof(Report)); });
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    Watch watch(point, *report);
    try {
      g_watch = &watch;
      body();
    } catch (const std::exception& error) {
      watch.fail(error.what());
    }
    t_is_inside = true;
    watch.end(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  Crash crash{.is_complete = code == 0, .change = report->change, .failure = report->failure};
  if (code != 0 && code != kCrashed && crash.failure.empty()) crash.failure = "status " + std::to_string(status);
  return crash;
}

namespace {

template <typename Function>
Function* real(const char* name) {
  void* found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) ::abort();
  return reinterpret_cast<Function*>(found);
}

// True if a plan of faults.h makes the call fail; errno then says why.
bool is_struck(std::string_view name, int fd) { return is_faulty() && strike(name, path_of(fd)); }
bool is_struck(std::string_view name, int folder, const char* path) {
  return is_faulty() && strike(name, path_at(folder, path));
}

int open_as(const char* name, int folder, const char* path, int flags, mode_t mode) {
  if (is_struck((flags & O_CREAT) != 0 ? "create" : "open", folder, path)) return -1;
  using OpenAt = int(int, const char*, int, ...);
  static OpenAt* const open_at = real<OpenAt>("openat");
  const auto call = [=] { return open_at(folder, path, flags, mode); };
  if (!is_watching() || (flags & (O_CREAT | O_TRUNC)) == 0) return call();
  const fs::path whole = path_at(folder, path);
  return change<int>(name, whole, call, [&](DiskModel& disk) { disk.created(whole, false); });
}

bool has_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

template <typename Call>
auto write_as(const char* name, int fd, const Call& call) -> decltype(call()) {
  if (is_struck(name, fd)) return -1;
  if (!is_watching()) return call();
  return change<decltype(call())>(name, path_of(fd), call, [&](DiskModel& disk) { disk.wrote(fd); });
}

int sync_as(const char* name, int fd) {
  using Sync = int(int);
  if (is_struck(name, fd)) return -1;
  if (is_watching()) {
    return change<int>(
        name, path_of(fd), [] { return 0; }, [&](DiskModel& disk) { disk.synced(fd); });
  }
  return g_flushes ? real<Sync>(name)(fd) : 0;
}

int rename_as(const char* name, int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  using Rename = int(int, const char*, int, const char*, unsigned);
  static Rename* const rename_at = real<Rename>("renameat2");
  const auto call = [=] { return rename_at(from_folder, from, to_folder, to, flags); };
  if (is_struck("rename", to_folder, to)) return -1;
  if ((flags & RENAME_EXCHANGE) != 0 && is_faulty() && !faulty_disk_can_exchange()) {
    errno = EINVAL;
    return -1;
  }
  if (!is_watching()) return call();
  const fs::path old_path = path_at(from_folder, from), new_path = path_at(to_folder, to);
  const bool is_exchange = (flags & RENAME_EXCHANGE) != 0;
  if (is_exchange && g_watch->covers(new_path) && !g_watch->can_exchange()) {
    errno = EINVAL;
    return -1;
  }
  return change<int>(name, new_path, call, [&](DiskModel& disk) {
    is_exchange ? disk.exchanged(old_path, new_path) : disk.renamed(old_path, new_path);
  });
}

int remove_as(const char* name, int folder, const char* path, int flags) {
  using Unlink = int(int, const char*, int);
  static Unlink* const unlink_at = real<Unlink>("unlinkat");
  const auto call = [=] { return unlink_at(folder, path, flags); };
  if (is_struck(name, folder, path)) return -1;
  if (!is_watching()) return call();
  const fs::path whole = path_at(folder, path);
  return change<int>(name, whole, call, [&](DiskModel& disk) { disk.removed(whole); });
}

int make_folder_as(const char* name, int folder, const char* path, mode_t mode) {
  using MakeFolder = int(int, const char*, mode_t);
  static MakeFolder* const make_folder_at = real<MakeFolder>("mkdirat");
  const auto call = [=] { return make_folder_at(folder, path, mode); };
  if (is_struck("mkdir", folder, path)) return -1;
  if (!is_watching()) return call();
  const fs::path whole = path_at(folder, path);
  return change<int>(name, whole, call, [&](DiskModel& disk) { disk.created(whole, true); });
}

}  // namespace
}  // namespace megalith::test

using namespace megalith::test;  // NOLINT: these are the functions' other halves

// The functions under libc's names.
#define MEGALITH_LIBC(result, name, ...)                     \
  extern "C" result libc_##name(__VA_ARGS__) __asm__(#name); \
  extern "C" __attribute__((visibility("default"))) result libc_##name(__VA_ARGS__)

// The mode is there when the flags ask for it.
#define MEGALITH_MODE(flags)                            \
  mode_t mode = 0;                                      \
  if (has_mode(flags)) {                                \
    va_list more;                                       \
    va_start(more, flags);                              \
    mode = static_cast<mode_t>(va_arg(more, unsigned)); \
    va_end(more);                                       \
  }

MEGALITH_LIBC(int, open, const char* path, int flags, ...) {
  MEGALITH_MODE(flags)
  return open_as("open", AT_FDCWD, path, flags, mode);
}
MEGALITH_LIBC(int, open64, const char* path, int flags, ...) {
  MEGALITH_MODE(flags)
  return open_as("open", AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
MEGALITH_LIBC(int, openat, int folder, const char* path, int flags, ...) {
  MEGALITH_MODE(flags)
  return open_as("openat", folder, path, flags, mode);
}
MEGALITH_LIBC(int, openat64, int folder, const char* path, int flags, ...) {
  MEGALITH_MODE(flags)
  return open_as("openat", folder, path, flags | O_LARGEFILE, mode);
}

MEGALITH_LIBC(ssize_t, write, int fd, const void* data, size_t size) {
  static auto* const call = real<ssize_t(int, const void*, size_t)>("write");
  return write_as("write", fd, [=] { return call(fd, data, size); });
}
MEGALITH_LIBC(ssize_t, writev, int fd, const iovec* parts, int count) {
  static auto* const call = real<ssize_t(int, const iovec*, int)>("writev");
  return write_as("writev", fd, [=] { return call(fd, parts, count); });
}
MEGALITH_LIBC(ssize_t, pwrite, int fd, const void* data, size_t size, off_t at) {
  static auto* const call = real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return write_as("pwrite", fd, [=] { return call(fd, data, size, at); });
}
MEGALITH_LIBC(ssize_t, pwrite64, int fd, const void* data, size_t size, off64_t at) {
  static auto* const call = real<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  return write_as("pwrite", fd, [=] { return call(fd, data, size, at); });
}
MEGALITH_LIBC(int, ftruncate, int fd, off_t size) {
  static auto* const call = real<int(int, off_t)>("ftruncate");
  return write_as("ftruncate", fd, [=] { return call(fd, size); });
}
MEGALITH_LIBC(int, ftruncate64, int fd, off64_t size) {
  static auto* const call = real<int(int, off64_t)>("ftruncate64");
  return write_as("ftruncate", fd, [=] { return call(fd, size); });
}
MEGALITH_LIBC(int, fsync, int fd) { return sync_as("fsync", fd); }
MEGALITH_LIBC(int, fdatasync, int fd) { return sync_as("fdatasync", fd); }

MEGALITH_LIBC(int, rename, const char* from, const char* to) {
  return rename_as("rename", AT_FDCWD, from, AT_FDCWD, to, 0);
}
MEGALITH_LIBC(int, renameat, int from_folder, const char* from, int to_folder, const char* to) {
  return rename_as("renameat", from_folder, from, to_folder, to, 0);
}
MEGALITH_LIBC(int, renameat2, int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  return rename_as("renameat2", from_folder, from, to_folder, to, flags);
}
MEGALITH_LIBC(int, unlink, const char* path) { return remove_as("unlink", AT_FDCWD, path, 0); }
MEGALITH_LIBC(int, unlinkat, int folder, const char* path, int flags) {
  return remove_as("unlinkat", folder, path, flags);
}
MEGALITH_LIBC(int, rmdir, const char* path) { return remove_as("rmdir", AT_FDCWD, path, AT_REMOVEDIR); }
MEGALITH_LIBC(int, remove, const char* path) {
  struct stat info {};
  const bool is_folder = ::lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
  return remove_as("remove", AT_FDCWD, path, is_folder ? AT_REMOVEDIR : 0);
}
MEGALITH_LIBC(int, mkdir, const char* path, mode_t mode) { return make_folder_as("mkdir", AT_FDCWD, path, mode); }
MEGALITH_LIBC(int, mkdirat, int folder, const char* path, mode_t mode) {
  return make_folder_as("mkdirat", folder, path, mode);
}

// These change nothing on disk, so they are no crash points; but they can fail. A descriptor whose close() fails is
// closed all the same, as on Linux.
MEGALITH_LIBC(int, close, int fd) {
  static auto* const call = real<int(int)>("close");
  const bool fails = is_struck("close", fd);
  const int error_number = errno, result = call(fd);
  if (!fails) return result;
  errno = error_number;
  return -1;
}
MEGALITH_LIBC(ssize_t, read, int fd, void* data, size_t size) {
  static auto* const call = real<ssize_t(int, void*, size_t)>("read");
  return is_struck("read", fd) ? -1 : call(fd, data, size);
}
MEGALITH_LIBC(ssize_t, pread, int fd, void* data, size_t size, off_t at) {
  static auto* const call = real<ssize_t(int, void*, size_t, off_t)>("pread");
  return is_struck("pread", fd) ? -1 : call(fd, data, size, at);
}

// Calls that the model does not cover: nothing that must survive a crash may make them.
MEGALITH_LIBC(int, link, const char* from, const char* to) {
  if (is_watching()) refuse("link", path_at(AT_FDCWD, to));
  return real<int(const char*, const char*)>("link")(from, to);
}
MEGALITH_LIBC(int, symlink, const char* from, const char* to) {
  if (is_watching()) refuse("symlink", path_at(AT_FDCWD, to));
  return real<int(const char*, const char*)>("symlink")(from, to);
}
MEGALITH_LIBC(int, truncate, const char* path, off_t size) {
  if (is_watching()) refuse("truncate", path_at(AT_FDCWD, path));
  return real<int(const char*, off_t)>("truncate")(path, size);
}
