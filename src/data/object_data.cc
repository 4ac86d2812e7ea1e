#include "data/object_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/indexed_dataset.h"
#include "hub/text_files.h"
#include "storage/object_mirror.h"

namespace megalith {
namespace {

// "s3://bucket/set/train" as the folder s3://bucket/set and the name "train".
std::pair<S3Url, std::string> folder_and_name(const std::string& path) {
  S3Url url = parse_object_url(path);
  const size_t slash = url.prefix.rfind('/');
  std::string name = url.prefix.substr(slash == std::string::npos ? 0 : slash + 1);
  if (name.empty()) {
    throw UserError(fmt::format("{} names a bucket and no object in it", path), "write s3://bucket/prefix");
  }
  url.prefix.resize(slash == std::string::npos ? 0 : slash);
  return {std::move(url), std::move(name)};
}

std::vector<StoredObject> data_objects(const ObjectStore& store, const std::string& name) {
  std::vector<StoredObject> objects = store.list(name + ".");
  std::erase_if(objects, [&](const StoredObject& object) {
    return object.name != name + ".idx" && object.name != name + ".bin";
  });
  if (objects.size() == 2) return objects;
  throw UserError(fmt::format("data set {0}/{1}: {1}.idx and {1}.bin are not both there", store.url().text(), name),
                  "give the prefix of such a pair; texts become one with 'megalith prepare --input s3://…'");
}

}  // namespace

void check_object_data(const std::string& prefix, Logger& log) {
  const auto [url, name] = folder_and_name(data_prefix(prefix));
  data_objects(open_object_store(url, log), name);
}

std::string pull_object_data(const std::string& prefix, Logger& log) {
  const auto [url, name] = folder_and_name(data_prefix(prefix));
  const ObjectStore store = open_object_store(url, log);
  return (pull_objects(store, data_objects(store, name)) / name).string();
}

std::string fetch_object_texts(const std::string& path, Logger& log) {
  if (!is_object_url(path)) return path;
  if (path.find_first_of("*?[") != std::string::npos) {
    throw UserError(fmt::format("input {}: patterns are not compared with objects", path),
                    "name a prefix, below which all texts are read, or objects one by one");
  }
  const auto [url, name] = folder_and_name(path);
  const ObjectStore store = open_object_store(url, log);
  std::vector<StoredObject> objects = store.list(name);
  const bool is_one = std::ranges::any_of(objects, [&](const auto& object) { return object.name == name; });
  std::erase_if(objects, [&](const StoredObject& object) {
    return is_one ? object.name != name : !object.name.starts_with(name + "/") || !is_texts_name(object.name);
  });
  if (objects.empty()) {
    throw UserError(fmt::format("input {}: there is no such object, and no texts are below it", path),
                    "is it spelled right? Below a prefix texts are found by their endings, such as .jsonl and .txt");
  }
  return (pull_objects(store, objects, {.is_whole = true}) / name).string();
}

}  // namespace megalith
