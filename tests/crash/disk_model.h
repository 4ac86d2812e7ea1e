// Model of a folder's contents, and of the part that is sure to survive a power cut. See crash_points.h.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "crash_points.h"

namespace megalith::test {

class DiskModel {
 public:
  // Reads the folder; all that is there counts as flushed.
  explicit DiskModel(std::filesystem::path root);

  // Changes that were made. Paths are absolute and below the root.
  void created(const std::filesystem::path& path, bool is_folder);
  void wrote(int fd);
  void synced(int fd);
  void renamed(const std::filesystem::path& from, const std::filesystem::path& to);
  void exchanged(const std::filesystem::path& a, const std::filesystem::path& b);
  void removed(const std::filesystem::path& path);

  // "" if the model, without any loss, equals the disk; otherwise the first path that differs.
  std::string difference_from_disk() const;

  // Makes the disk what the loss leaves.
  void lose(Loss loss, std::mt19937& random) const;

 private:
  static constexpr int kNone = -1;
  struct Change {
    std::string name;
    int node;  // kNone: the name goes
  };
  struct Node {
    bool is_folder = false;
    std::string bytes, synced_bytes;                 // of a file
    std::map<std::string, int> names, synced_names;  // of a folder
    std::vector<std::vector<Change>> unsynced;       // changes of names in their order; those of one step together
  };
  using Tree = std::map<std::filesystem::path, std::optional<std::string>>;  // bytes; nothing for a folder

  int scan(const std::filesystem::path& path);
  int add(bool is_folder, const struct stat& info);
  int node_of(const std::filesystem::path& path) const;
  int node_of(int fd) const;
  void change_names(int folder, std::vector<Change> changes);
  void collect(int node, const std::filesystem::path& path, Loss loss, std::mt19937& random, Tree& tree) const;

  std::filesystem::path root_;
  std::vector<Node> nodes_;
  std::map<std::pair<dev_t, ino_t>, int> node_of_inode_;
};

}  // namespace megalith::test
