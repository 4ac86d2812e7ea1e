// See disk_model.h.
#include "disk_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace megalith::test {
namespace fs = std::filesystem;
namespace {

std::string bytes_of_file(const fs::path& path) {
  std::string bytes;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw std::runtime_error("cannot read " + path.string());
  char block[65536];
  for (ssize_t count = 0; (count = ::read(fd, block, sizeof(block))) > 0;)
    bytes.append(block, static_cast<size_t>(count));
  ::close(fd);
  return bytes;
}

struct stat status_of(const fs::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) throw std::runtime_error("no status of " + path.string());
  if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) throw std::runtime_error(path.string() + " is a link");
  return info;
}

}  // namespace

DiskModel::DiskModel(fs::path root) : root_(std::move(root)) { scan(root_); }

int DiskModel::scan(const fs::path& path) {
  const struct stat info = status_of(path);
  const int number = add(S_ISDIR(info.st_mode), info);
  if (S_ISDIR(info.st_mode)) {
    std::map<std::string, int> names;
    for (const auto& entry : fs::directory_iterator(path)) names[entry.path().filename().string()] = scan(entry.path());
    nodes_[static_cast<size_t>(number)].names = nodes_[static_cast<size_t>(number)].synced_names = std::move(names);
  } else {
    Node& node = nodes_[static_cast<size_t>(number)];
    node.bytes = node.synced_bytes = bytes_of_file(path);
  }
  return number;
}

int DiskModel::add(bool is_folder, const struct stat& info) {
  nodes_.emplace_back().is_folder = is_folder;
  // A number that the file system uses again belongs to the newer file.
  return node_of_inode_[{info.st_dev, info.st_ino}] = static_cast<int>(nodes_.size()) - 1;
}

int DiskModel::node_of(const fs::path& path) const {
  int node = 0;
  for (const fs::path& part : path.lexically_relative(root_)) {
    if (part == ".") continue;
    const auto& names = nodes_[static_cast<size_t>(node)].names;
    const auto found = names.find(part.string());
    if (found == names.end()) return kNone;
    node = found->second;
  }
  return node;
}

int DiskModel::node_of(int fd) const {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw std::runtime_error("no status of a descriptor");
  const auto found = node_of_inode_.find({info.st_dev, info.st_ino});
  if (found == node_of_inode_.end()) throw std::runtime_error("its creation was not seen");
  return found->second;
}

void DiskModel::change_names(int folder, std::vector<Change> changes) {
  Node& node = nodes_[static_cast<size_t>(folder)];
  for (const Change& change : changes) {
    if (change.node == kNone) {
      node.names.erase(change.name);
    } else {
      node.names[change.name] = change.node;
    }
  }
  node.unsynced.push_back(std::move(changes));
}

void DiskModel::created(const fs::path& path, bool is_folder) {
  const int present = node_of(path);
  if (present == kNone) {
    const int node = add(is_folder, status_of(path));
    change_names(node_of(path.parent_path()), {{path.filename().string(), node}});
  } else if (!is_folder) {
    nodes_[static_cast<size_t>(present)].bytes = bytes_of_file(path);  // it may have been emptied
  }
}

void DiskModel::wrote(int fd) {
  nodes_[static_cast<size_t>(node_of(fd))].bytes = bytes_of_file("/proc/self/fd/" + std::to_string(fd));
}

void DiskModel::synced(int fd) {
  Node& node = nodes_[static_cast<size_t>(node_of(fd))];
  node.synced_bytes = node.bytes;
  node.synced_names = node.names;
  node.unsynced.clear();
}

void DiskModel::renamed(const fs::path& from, const fs::path& to) {
  const int node = node_of(from), from_folder = node_of(from.parent_path()), to_folder = node_of(to.parent_path());
  if (from_folder == to_folder) {
    change_names(to_folder, {{from.filename().string(), kNone}, {to.filename().string(), node}});
  } else {
    change_names(from_folder, {{from.filename().string(), kNone}});
    change_names(to_folder, {{to.filename().string(), node}});
  }
}

void DiskModel::exchanged(const fs::path& a, const fs::path& b) {
  const int node_a = node_of(a), node_b = node_of(b);
  if (a.parent_path() != b.parent_path()) throw std::runtime_error("an exchange over two folders is not modelled");
  change_names(node_of(a.parent_path()), {{a.filename().string(), node_b}, {b.filename().string(), node_a}});
}

void DiskModel::removed(const fs::path& path) {
  change_names(node_of(path.parent_path()), {{path.filename().string(), kNone}});
}

void DiskModel::collect(int number, const fs::path& path, Loss loss, std::mt19937& random, Tree& tree) const {
  const Node& node = nodes_[static_cast<size_t>(number)];
  const auto draw = [&](unsigned choices) { return random() % choices; };
  if (!node.is_folder) {
    const std::string zeros(node.bytes == node.synced_bytes ? 0 : node.bytes.size(), '\0');
    const std::string& zeroed = node.bytes == node.synced_bytes ? node.bytes : zeros;
    const std::string* bytes = &node.bytes;
    if (loss == Loss::kUnsyncedBytes || loss == Loss::kEverythingUnsynced) bytes = &node.synced_bytes;
    if (loss == Loss::kZeroedBytes) bytes = &zeroed;
    if (loss == Loss::kSomethingUnsynced) {
      const std::string* const all[] = {&node.bytes, &node.synced_bytes, &zeroed};
      bytes = all[draw(3)];
    }
    tree[path] = *bytes;
    return;
  }
  tree[path] = std::nullopt;
  std::map<std::string, int> names = node.names;
  if (loss == Loss::kUnsyncedNames || loss == Loss::kEverythingUnsynced) names = node.synced_names;
  if (loss == Loss::kSomethingUnsynced) {
    names = node.synced_names;
    for (const std::vector<Change>& changes : node.unsynced) {
      if (draw(2) == 0) continue;
      for (const Change& change : changes) {
        names.erase(change.name);
        if (change.node != kNone) names[change.name] = change.node;
      }
    }
  }
  for (const auto& [name, child] : names) collect(child, path / name, loss, random, tree);
}

std::string DiskModel::difference_from_disk() const {
  Tree model, disk;
  std::mt19937 unused;
  collect(0, root_, Loss::kNothing, unused, model);
  disk[root_] = std::nullopt;
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    disk[entry.path()] = entry.is_directory() ? std::nullopt : std::optional(bytes_of_file(entry.path()));
  }
  const auto differ = std::mismatch(model.begin(), model.end(), disk.begin(), disk.end());
  if (differ.first != model.end()) return differ.first->first.string();
  return differ.second != disk.end() ? differ.second->first.string() : "";
}

void DiskModel::lose(Loss loss, std::mt19937& random) const {
  if (loss == Loss::kNothing) return;
  Tree tree;
  collect(0, root_, loss, random, tree);
  for (const auto& entry : fs::directory_iterator(root_)) fs::remove_all(entry.path());
  for (const auto& [path, bytes] : tree) {  // parents before what they hold
    if (bytes) {
      std::ofstream(path, std::ios::binary) << *bytes;
    } else {
      fs::create_directories(path);
    }
  }
}

}  // namespace megalith::test
