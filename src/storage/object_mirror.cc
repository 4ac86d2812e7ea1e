#include "storage/object_mirror.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "config/environment.h"
#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/machine_error.h"
#include "core/on_threads.h"
#include "core/system_call.h"
#include "hub/names.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kMostRequestBytes = int64_t{16} << 20;
constexpr size_t kReadThreads = 8;
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kLeastHoleBytes = int64_t{64} << 20;  // smaller files are copied when they are opened (core/file.cc)
#else
constexpr int64_t kLeastHoleBytes = kBlockBytes;
#endif

const fs::path& mirrors_root() {
  static const fs::path root = [] {
    const char* folder = std::getenv("TMPDIR");
    return fs::path(folder != nullptr && folder[0] == '/' ? folder : "/tmp") /
           fmt::format("megalith-objects-{}", ::getuid());
  }();
  return root;
}

// Another user's folder of this name in /tmp could feed us weights.
void make_mirrors_root() {
  const fs::path& root = mirrors_root();
  make_directories(root.parent_path());
  if (::mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) fail_file("create", root, errno);
  struct stat info {};
  if (::lstat(root.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::getuid()) {
    throw UserError(fmt::format("{} is not a folder of yours", root.string()), "remove it, or set TMPDIR to another");
  }
}

// Every sample that is read asks.
bool is_mirrored(const fs::path& path) {
  static const std::string beginning = mirrors_root().native() + "/";
  return path.native().starts_with(beginning);
}

fs::path beside(const fs::path& file, std::string_view ending) {
  return file.parent_path() / fmt::format(".{}.{}", file.filename().string(), ending);
}

class OpenFile {
 public:
  OpenFile(const fs::path& path, int flags)
      : path_(path), fd_(retry_interrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0600); })) {
    if (fd_ < 0 && errno != ENOENT) fail_file("open", path, errno);
  }
  ~OpenFile() {
    if (fd_ >= 0) close_descriptor(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  bool is_there() const { return fd_ >= 0; }
  void lock() const {
    if (retry_interrupted([&] { return ::flock(fd_, LOCK_EX); }) != 0) fail_file("lock", path_, errno);
  }
  void resize(int64_t size) const {
    if (retry_interrupted([&] { return ::ftruncate(fd_, size); }) != 0) fail_file("write", path_, errno);
  }
  void write(int64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = retry_interrupted([&] { return ::pwrite(fd_, bytes.data(), bytes.size(), offset); });
      if (count < 0) fail_file("write", path_, errno);
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += count;
    }
  }
  void read(int64_t offset, std::span<char> out) const {
    const ssize_t count = retry_interrupted([&] { return ::pread(fd_, out.data(), out.size(), offset); });
    if (count != std::ssize(out)) fail_file("read", path_, count < 0 ? errno : EIO);
  }
  void flush() const {
    if (retry_interrupted([&] { return ::fdatasync(fd_); }) != 0) fail_file("write", path_, errno);
  }

 private:
  const fs::path& path_;
  int fd_;
};

std::string record_of(const S3Url& url, const StoredObject& object, bool has_holes) {
  return dump_json(Json{{"url", S3Url{url.bucket, url.key(object.name)}.text()},
                        {"etag", object.etag},
                        {"size", object.size},
                        {"modified", object.modified},
                        {"has_holes", has_holes}});
}

// Without what is beside it, a hole would be read as zeros, and a save would stay on this machine.
[[noreturn]] void fail_for_cleaned(const fs::path& path) {
  throw MachineError(fmt::format("{}: its mirror of object storage was removed while it was in use", path.string()),
                     "start again, with TMPDIR in a folder that nothing cleans");
}

// Etags of the files that this process has mapped: their holes are of these versions.
std::mutex versions_mutex;
std::map<std::string, std::string>& versions() {
  static std::map<std::string, std::string> all;
  return all;
}

void require_version(const fs::path& file, const std::string& etag) {
  const std::lock_guard lock(versions_mutex);
  if (versions().try_emplace(file.string(), etag).first->second == etag) return;
  throw MachineError(fmt::format("{}: its object was replaced while this run was reading it", file.string()),
                     "start again, and replace data only when no run reads them");
}

// As the object's, so that `prepare` knows its inputs again.
void set_modified(const fs::path& file, const std::string& modified) {
  std::tm time{};
  if (::strptime(modified.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr) return;
  const timespec times[2] = {{.tv_sec = ::timegm(&time), .tv_nsec = 0}, {.tv_sec = ::timegm(&time), .tv_nsec = 0}};
  ::utimensat(AT_FDCWD, file.c_str(), times, 0);
}

void fetch_whole(const ObjectStore& store, const StoredObject& object, const fs::path& temporary) {
  const OpenFile file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  std::vector<std::byte> buffer;
  for (int64_t at = 0; at < object.size; at += kMostRequestBytes) {
    buffer.resize(static_cast<size_t>(std::min(kMostRequestBytes, object.size - at)));
    store.read(object, at, buffer);
    file.write(at, buffer);
  }
  file.flush();
}

void bring(const ObjectStore& store, const StoredObject& object, const fs::path& file, bool has_holes) {
  const fs::path temporary = beside(file, "new"), blocks = beside(file, "blocks");
  fs::create_directories(file.parent_path());
  std::error_code ignored;
  fs::remove(beside(file, "object"), ignored);
  fs::remove(blocks, ignored);
  {
    const std::lock_guard lock(versions_mutex);
    versions().erase(file.string());
  }
  if (has_holes) {
    const OpenFile hole(temporary, O_WRONLY | O_CREAT | O_TRUNC), marks(blocks, O_WRONLY | O_CREAT | O_TRUNC);
    hole.resize(object.size);
    marks.resize(div_up(object.size, kBlockBytes));
  } else {
    fetch_whole(store, object, temporary);
  }
  rename_path(temporary, file);
  set_modified(file, object.modified);
  write_file_atomic(beside(file, "object"), record_of(store.url(), object, has_holes));
}

}  // namespace

fs::path mirror_of(const S3Url& url) { return mirrors_root() / url.bucket / url.prefix; }

std::string local_path(const std::string& path) {
  if (!is_object_url(path)) return path;
  make_mirrors_root();
  return mirror_of(parse_object_url(path)).string();
}

ObjectStore open_object_store(const S3Url& url, Logger& log) {
  return {read_s3_settings(environment_snapshot()), url, log};
}

std::optional<ObjectStore> mirrored_store(const fs::path& folder, Logger& log) {
  std::error_code ignored;
  const fs::path address = folder / ".url";
  if (!is_mirrored(folder)) return std::nullopt;
  if (!fs::exists(address, ignored)) fail_for_cleaned(folder);
  return open_object_store(parse_object_url(read_file(address)), log);
}

fs::path pull_objects(const ObjectStore& store, const std::vector<StoredObject>& objects, const PullRules& rules) {
  const fs::path folder = mirror_of(store.url());
  make_mirrors_root();
  make_directories(folder);
  const fs::path lock_file = folder / ".pull";
  const OpenFile lock(lock_file, O_RDWR | O_CREAT);
  lock.lock();
  write_file_atomic(folder / ".url", store.url().text());
  std::set<fs::path> present;
  std::vector<const StoredObject*> missing;
  for (const StoredObject& object : objects) {
    if (object.name.ends_with('/')) continue;  // consoles mark folders so
    if (!is_safe_hub_file(object.name)) {
      throw UserError(fmt::format("{}/{} has a name that no file can have", store.url().text(), object.name),
                      "rename or remove the object");
    }
    const fs::path file = folder / object.name, record = beside(file, "object");
    present.insert(file);
    std::error_code ignored;
    const std::string text = fs::exists(file, ignored) && fs::exists(record, ignored) ? read_file(record) : "";
    const bool has_blocks = !rules.is_whole && fs::exists(beside(file, "blocks"), ignored);
    const bool is_here = text == record_of(store.url(), object, false) ||
                         (has_blocks && text == record_of(store.url(), object, true));
    if (!is_here) missing.push_back(&object);
  }
  for_each_on_threads(missing.size(), kReadThreads, [&](size_t i) {
    const StoredObject& object = *missing[i];
    const bool is_large = object.size >= kLeastHoleBytes &&
                          (object.name.ends_with(".safetensors") || object.name.ends_with(".bin"));
    bring(store, object, folder / object.name, is_large && !rules.is_whole);
  });
  if (!rules.removes_others) return folder;
  // Staged files of a save have no record, and stay.
  for (const fs::directory_entry& entry : list_tree(folder)) {
    const fs::path file = entry.path();
    if (present.contains(file) || !entry.is_regular_file() || !fs::exists(beside(file, "object"))) continue;
    for (const fs::path& path : {beside(file, "object"), beside(file, "blocks"), file}) try_remove_tree(path);
    std::error_code ignored;
    fs::remove(file.parent_path(), ignored);  // if it is empty now
  }
  return folder;
}

void fill_mirrored(const fs::path& path, int64_t offset, int64_t length) {
  if (length <= 0 || !is_mirrored(path)) return;
  const fs::path marks_path = beside(path, "blocks");
  const OpenFile marks(marks_path, O_RDWR);
  if (!marks.is_there()) {
    const fs::path record = beside(path, "object");
    if (fs::exists(record) && !json_get<bool>(load_json(record), "has_holes", record.string())) return;
    fail_for_cleaned(path);
  }
  const int64_t first = offset / kBlockBytes, last = div_up(offset + length, kBlockBytes);
  std::string present(static_cast<size_t>(last - first), '\0');
  marks.read(first, present);
  const Json record = load_json(beside(path, "object"));
  const std::string where = beside(path, "object").string();
  const StoredObject object{.name = "",
                            .etag = json_get<std::string>(record, "etag", where),
                            .size = json_get<int64_t>(record, "size", where),
                            .modified = ""};
  require_version(path, object.etag);
  std::vector<std::pair<int64_t, int64_t>> runs;  // of missing blocks
  for (int64_t block = first; block < last; ++block) {
    if (present[static_cast<size_t>(block - first)] != '\0') continue;
    const bool goes_on = !runs.empty() && runs.back().second == block &&
                         block - runs.back().first < kMostRequestBytes / kBlockBytes;
    if (goes_on) {
      ++runs.back().second;
    } else {
      runs.emplace_back(block, block + 1);
    }
  }
  if (runs.empty()) return;
  Logger log;
  const ObjectStore store = open_object_store(parse_object_url(json_get<std::string>(record, "url", where)), log);
  const OpenFile file(path, O_WRONLY);
  for_each_on_threads(runs.size(), kReadThreads, [&](size_t i) {
    const int64_t begin = runs[i].first * kBlockBytes, end = std::min(runs[i].second * kBlockBytes, object.size);
    std::vector<std::byte> bytes(static_cast<size_t>(end - begin));
    store.read(object, begin, bytes);
    file.write(begin, bytes);
  });
  file.flush();  // before the marks: after a power cut a marked block is there
  const std::vector<std::byte> ones(kMostRequestBytes / kBlockBytes, std::byte{1});
  for (const auto& [begin, end] : runs) marks.write(begin, std::span(ones).first(static_cast<size_t>(end - begin)));
}

}  // namespace megalith
