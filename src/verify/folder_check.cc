#include "verify/folder_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/strings.h"
#include "core/system_call.h"
#include "core/time.h"

namespace megalith {
namespace {

namespace files = std::filesystem;

// Removed by the destructor.
class ProbeFile {
 public:
  explicit ProbeFile(const files::path& folder) : name_((folder / ".megalith_doctor_XXXXXX").string()) {
    handle_ = make();
    if (handle_ < 0) error_ = errno;
  }
  ~ProbeFile() {
    if (handle_ < 0) return;
    close_descriptor(handle_);
    try_remove_tree(name_);
  }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

  // Seconds until on disk; -1 on failure.
  double write(int64_t num_bytes) {
    if (handle_ < 0) return -1;
    // Incompressible, for compressing file systems.
    std::vector<uint64_t> block(size_t{1} << 17);
    uint64_t state = 88172645463325252u;
    for (uint64_t& word : block) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;  // xorshift64
      word = state;
    }
    const Stopwatch watch;
    for (int64_t left = num_bytes; left > 0;) {
      const size_t size = static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(block.size() * 8)));
      const ssize_t written = retry_interrupted([&] { return ::write(handle_, block.data(), size); });
      if (written <= 0) return fail();
      left -= written;
    }
    if (retry_interrupted([&] { return ::fsync(handle_); }) != 0) return fail();
    return std::max(watch.elapsed_s(), 1e-6);
  }

  int error() const { return error_; }

 private:
  // mkostemp overwrites its pattern.
  int make() {
    const std::string pattern = name_;
    return retry_interrupted([&] {
      name_ = pattern;
      return ::mkostemp(name_.data(), O_CLOEXEC);
    });
  }
  double fail() {
    error_ = errno == 0 ? EIO : errno;
    return -1;
  }

  std::string name_;
  int handle_ = -1, error_ = 0;
};

bool is_network(std::string_view type) {
  for (const std::string_view one : {"nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "gpfs", "beegfs", "wekafs", "9p",
                                     "virtiofs", "fuse.sshfs", "fuse.glusterfs", "fuse.juicefs", "afs"}) {
    if (type == one) return true;
  }
  return false;
}

}  // namespace

FolderFacts probe_folder(const std::string& purpose, const files::path& path, int64_t num_bytes,
                         const files::path& root) {
  FolderFacts facts{.purpose = purpose, .path = path, .nearest = {}, .problem = "", .mount = {}, .space = {}};
  std::error_code error;
  files::path folder = files::absolute(path, error).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "checkpoints/"
  while (!files::exists(folder, error) && folder != folder.parent_path()) folder = folder.parent_path();
  facts.nearest = folder;
  const files::path real = files::canonical(folder, error);
  facts.mount = mount_of(root, error ? folder : real);
  facts.space = read_space(folder);
  if (!files::is_directory(folder, error)) {
    facts.problem = fmt::format("{} is no folder", folder.string());
    return facts;
  }
  ProbeFile file(folder);
  // Leave space for others.
  if (facts.space) num_bytes = std::min(num_bytes, facts.space->free_bytes / 4);
  const double seconds = file.write(num_bytes);
  if (seconds < 0) {
    facts.problem = fmt::format("{}: {}", folder.string(), system_error_text(file.error()));
  } else {
    facts.write_bytes_per_s = static_cast<double>(num_bytes) / seconds;
  }
  return facts;
}

Findings check_folder(const FolderFacts& facts) {
  Findings findings;
  const auto add = [&](FindingLevel level, const std::string& what, std::string found, std::string remedy = "") {
    findings.push_back({"disk", facts.purpose + what, level, std::move(found), std::move(remedy)});
  };
  const std::string path = facts.path.string();
  if (!facts.problem.empty()) {
    add(FindingLevel::kError, "", fmt::format("{} cannot be written: {}", path, facts.problem),
        "choose another folder, or mend its owner, mode or mount");
    return findings;
  }
  constexpr int64_t kLittle = int64_t{1} << 30;
  constexpr int64_t kFewInodes = 1000;
  constexpr double kSlow = 20e6;
  const SpaceFacts space = facts.space.value_or(SpaceFacts{});
  std::string text = facts.space ? fmt::format("{}: {} free of {}", path, format_bytes(space.free_bytes),
                                               format_bytes(space.total_bytes))
                                 : path + ": free space is not told";
  const bool is_full = facts.space && space.free_bytes < kLittle;
  add(is_full ? FindingLevel::kWarning : FindingLevel::kOk, "", std::move(text),
      is_full ? "a checkpoint takes 16 bytes a parameter and more: make room" : "");
  if (facts.write_bytes_per_s > 0) {
    const bool is_slow = facts.write_bytes_per_s < kSlow;
    add(is_slow ? FindingLevel::kWarning : FindingLevel::kOk, " speed",
        fmt::format("{}/s written and flushed", format_bytes(static_cast<int64_t>(facts.write_bytes_per_s))),
        is_slow ? "checkpoints will take long: another disk, or --async_save" : "");
  }
  if (space.total_inodes > 0 && space.free_inodes < kFewInodes) {
    add(FindingLevel::kWarning, " inodes", fmt::format("{} free of {}", space.free_inodes, space.total_inodes),
        "the file system holds no more files: remove some");
  }
  if (!facts.mount) return findings;
  const std::string on = fmt::format("{} ({} at {})", facts.mount->type, facts.mount->source, facts.mount->point);
  if (is_network(facts.mount->type)) {
    add(FindingLevel::kNote, " file system", on + ": shared with other machines, and its speed with other jobs");
  } else if (facts.mount->type == "overlay") {
    add(FindingLevel::kNote, " file system", on + ": the container's own; what is written goes with it",
        "mount a folder of the host (-v) for what shall stay");
  } else if (facts.mount->type == "tmpfs" || facts.mount->type == "ramfs") {
    add(FindingLevel::kNote, " file system", on + ": main memory; what is written is gone after a restart");
  } else {
    add(FindingLevel::kOk, " file system", on);
  }
  return findings;
}

}  // namespace megalith
