// torch.save's archives, put together by hand.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foreign/pickle_writer.h"

namespace megalith::pickled {

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
