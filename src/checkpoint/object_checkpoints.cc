#include "checkpoint/object_checkpoints.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// "iter_0000100" of our layout; "" for other objects, also of other trainers.
std::string iteration_folder(const std::string& name) {
  const size_t slash = std::min(name.find('/'), name.size());
  return parse_checkpoint_folder_name(name.substr(0, slash)) ? name.substr(0, slash) : "";
}

// Iterations with tensors and no manifest.
std::set<std::string> interrupted_saves(const std::vector<StoredObject>& objects) {
  std::set<std::string> begun, whole;
  for (const StoredObject& object : objects) {
    const std::string folder = iteration_folder(object.name);
    if (folder.empty()) continue;
    if (object.name.ends_with(".safetensors")) begun.insert(folder);
    if (object.name == fmt::format("{}/{}", folder, kManifestFile)) whole.insert(folder);
  }
  std::erase_if(begun, [&](const std::string& folder) { return whole.contains(folder); });
  return begun;
}

}  // namespace

fs::path pull_checkpoints(const std::string& path, Logger& log) {
  if (!is_object_url(path)) return path;
  const ObjectStore store = open_object_store(parse_object_url(path), log);
  std::vector<StoredObject> objects = store.list();
  const std::set<std::string> interrupted = interrupted_saves(objects);
  std::erase_if(objects,
                [&](const StoredObject& object) { return interrupted.contains(iteration_folder(object.name)); });
  return pull_objects(store, objects, {.removes_others = true});
}

void check_stored_writable(const std::string& url, Logger& log) {
  const ObjectStore store = open_object_store(parse_object_url(url), log);
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string name = fmt::format(".megalith_probe_{}_{}", ::getpid(), now);
  store.put(name, "");
  store.remove(name);
}

void remove_interrupted_saves(const ObjectStore& store, Logger& log) {
  const int64_t num_uploads = store.abort_uploads("iter_");
  if (num_uploads > 0) {
    log.info("ended {} uploads in parts, left by a run that was stopped while it saved", num_uploads);
  }
  const std::vector<StoredObject> objects = store.list("iter_");
  for (const std::string& folder : interrupted_saves(objects)) {
    for (const StoredObject& object : objects) {
      if (iteration_folder(object.name) == folder) store.remove(object.name);
    }
    log.info("removed {}/{}, left by a run that was stopped while it saved", store.url().text(), folder);
  }
}

void remove_stored_checkpoint(const ObjectStore& store, int64_t iteration) {
  const std::string folder = checkpoint_folder_name(iteration);
  store.remove(fmt::format("{}/{}", folder, kManifestFile));
  for (const StoredObject& object : store.list(folder + "/")) store.remove(object.name);
}

}  // namespace megalith
