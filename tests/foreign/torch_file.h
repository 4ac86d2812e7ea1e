// Pickles and torch.save archives, put together by hand.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::pickled {

inline std::string little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

inline std::string text(std::string_view value) { return "X" + little(value.size(), 4) + std::string(value); }
inline std::string whole(int64_t value) { return "J" + little(static_cast<uint64_t>(value), 4); }
inline std::string name(std::string_view module, std::string_view word) {
  return "c" + std::string(module) + "\n" + std::string(word) + "\n";
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string all = "}(";
  for (const auto& [key, value] : entries) all += text(key) + value;
  return all + "u";
}
inline std::string numbers(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(whole(value));
  return tuple(items);
}
// A tensor of `count` elements in storage `key`.
inline std::string tensor(std::string_view storage, std::string_view key, int64_t count, int64_t first,
                          const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  const std::string id = tuple({text("storage"), name("torch", storage), text(key), text("cpu"), whole(count)}) + "Q";
  return name("torch._utils", "_rebuild_tensor_v2") +
         tuple({id, whole(first), numbers(shape), numbers(strides), "\x89",
                name("collections", "OrderedDict") + ")R"}) +
         "R";
}
inline std::string whole_pickle(std::string_view value) { return "\x80\x02" + std::string(value) + "."; }

inline std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A zip file of uncompressed entries in the folder "archive".
inline std::string archive(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string file, directory;
  for (const auto& [entry, content] : entries) {
    const std::string path = "archive/" + entry;
    const std::string sizes = little(content.size(), 4) + little(content.size(), 4);
    const uint64_t at = file.size();
    file += "PK\x03\x04" + little(0, 2) + little(0, 2) + little(0, 2) + little(0, 4) + little(0, 4) + sizes +
            little(path.size(), 2) + little(0, 2) + path + content;
    directory += "PK\x01\x02" + little(0, 8) + little(0, 8) + sizes + little(path.size(), 2) + little(0, 2) +
                 little(0, 2) + little(0, 4) + little(0, 4) + little(at, 4) + path;
  }
  const uint64_t start = file.size();
  return file + directory + "PK\x05\x06" + little(0, 4) + little(entries.size(), 2) + little(entries.size(), 2) +
         little(directory.size(), 4) + little(start, 4) + little(0, 2);
}

// torch.save of a float32 tensor.
inline std::string saved_tensor(const std::vector<float>& values, const std::vector<int64_t>& shape,
                                const std::vector<int64_t>& strides) {
  const auto count = static_cast<int64_t>(values.size());
  return archive({{"data.pkl", whole_pickle(tensor("FloatStorage", "0", count, 0, shape, strides))},
                  {"byteorder", "little"},
                  {"data/0", floats(values)}});
}

}  // namespace megalith::pickled
